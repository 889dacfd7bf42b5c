"""The one error of the lab: what the user can do something about."""


class LabError(Exception):
    """A message for the user; the command ends with exit code 2."""
