"""What a lab has made, in a file that is written before each thing is made: `down` after a crash at
any point removes exactly that."""

import contextlib
import fcntl
import json
import os
import pathlib

from lab.errors import LabError


def directory():
    if os.geteuid() == 0:
        return pathlib.Path("/run/meshwright-netlab")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return pathlib.Path(runtime or f"/tmp/meshwright-netlab-{os.geteuid()}") / "meshwright-netlab"


class State:
    """`content` is plain JSON: `made` lists namespaces and cgroups, the rest describes the lab."""

    def __init__(self, lab):
        self.prefix = f"mwlab-{lab}" if lab else "mwlab"
        self.place = directory() / (f"state-{lab}.json" if lab else "state.json")
        self.content = None

    def load(self):
        """Reads the file; False when there is none."""
        try:
            self.content = json.loads(self.place.read_text())
        except FileNotFoundError:
            return False
        except (ValueError, OSError) as error:
            raise LabError(f"{self.place} cannot be read: {error}") from None
        if not isinstance(self.content, dict) or not isinstance(self.content.get("made"), list):
            raise LabError(f"{self.place} is no state of a lab")
        return True

    def require(self):
        """The content of a lab that is up."""
        if not self.load():
            raise LabError("no lab is up; make one: tools/netlab up CLUSTER.yaml")
        if not self.content.get("complete"):
            raise LabError("the lab is only half made; remove it: tools/netlab down")
        return self.content

    def save(self):
        self.place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = self.place.with_suffix(".new")
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump(self.content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.place)

    def note(self, kind, name):
        """To be called before the thing is made."""
        self.content["made"].append([kind, name])
        self.save()

    def remove(self):
        """Forgets a lab that is gone; to be called under the lock, whose file goes too."""
        for suffix in (".json", ".bytes", ".lock"):
            self.place.with_suffix(suffix).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.place.parent.rmdir()

    @contextlib.contextmanager
    def lock(self):
        """One command that changes or uses the lab at a time. Freed by the kernel after a crash."""
        place = self.place.with_suffix(".lock")
        while True:
            self.place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            with open(place, "w", encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise LabError(
                        "another netlab command is using the lab; wait for its end") from None
                # A file that `down` has removed meanwhile locks nothing.
                if place.exists() and os.path.samestat(os.fstat(file.fileno()), place.stat()):
                    yield
                    return
