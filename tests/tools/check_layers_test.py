#!/usr/bin/env python3
"""tools/check_layers on small trees with one fault each."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/check_layers"
LAYERS = """# meshwright_layer(ghost DEPS meshwright_base)
meshwright_layer(base DEPS fmt::fmt)
meshwright_layer(ir DEPS meshwright_base)
meshwright_layer(cost
  DEPS meshwright_ir)
meshwright_layer(emit DEPS meshwright_ir)
"""


class CheckLayers(unittest.TestCase):
    def check(self, files):
        """Exit status and output for a clean tree overlaid with `files`."""
        clean = {"src/CMakeLists.txt": LAYERS, "src/base/a.h": "#pragma once\n",
                 "src/ir/b.h": '#pragma once\n#include "base/a.h"\n',
                 "src/emit/e.h": "#pragma once\n"}
        with tempfile.TemporaryDirectory() as root:
            for name, text in (clean | files).items():
                path = pathlib.Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            run = subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True,
                                 text=True, check=False)
            return run.returncode, run.stdout + run.stderr

    def assert_fault(self, files, message):
        status, output = self.check(files)
        self.assertEqual(status, 1, output)
        self.assertIn(message, output)

    def test_clean_tree(self):
        status, output = self.check({})
        self.assertEqual((status, output), (0, "3 files in 4 layers: 0 faults, 0 warnings\n"))

    def test_include_of_a_layer_further_left_is_legal(self):
        status, output = self.check({"src/cost/c.cpp": '#include "base/a.h"\n#include "ir/b.h"\n'})
        self.assertEqual(status, 0, output)

    def test_include_of_a_layer_to_the_right(self):
        self.assert_fault({"src/base/a.h": '#pragma once\n\n#include "ir/b.h"\n'},
                          'src/base/a.h:3: layer base must not include "ir/b.h": it sees only base')

    def test_include_of_a_layer_on_another_line(self):
        self.assert_fault({"src/cost/c.cpp": '#include "emit/e.h"\n'},
                          'layer cost must not include "emit/e.h": it sees only base, ir, cost')

    def test_programs_see_every_layer(self):
        status, output = self.check({"apps/x/main.cpp": '#include "emit/e.h"\n'})
        self.assertEqual(status, 0, output)

    def test_missing_and_relative_headers(self):
        self.assert_fault({"src/ir/c.cpp": '#include "base/none.h"\n'}, '"base/none.h" is no file')
        self.assert_fault({"src/ir/c.cpp": '#include "b.h"\n'}, '"b.h" is no file under src/')
        self.assert_fault({"src/ir/c.cpp": '#include "../base/a.h"\n'}, "is no file under src/")

    def test_layer_that_cmake_does_not_know(self):
        self.assert_fault({"src/ghost/c.cpp": ""}, "layer 'ghost' is not in src/CMakeLists.txt")

    def test_layers_out_of_order(self):
        self.assert_fault({"src/CMakeLists.txt": "meshwright_layer(base DEPS meshwright_ir)\n"
                                                 "meshwright_layer(ir DEPS fmt::fmt)\n"},
                          "layer base depends on ir, which is not defined above it")

    def test_header_without_pragma_once(self):
        self.assert_fault({"src/ir/c.h": "int x;\n"}, "src/ir/c.h: has no #pragma once")

    def test_names(self):
        self.assert_fault({"src/ir/file_utils.cpp": ""}, "'utils' in a file name")
        self.assert_fault({"src/ir/FileTable.cpp": ""}, "file names are snake_case")
        self.assert_fault({"src/ir/c.cpp": "\nclass PlanManager;\n"}, "c.cpp:2: 'Manager' in")
        self.assert_fault({"src/ir/c.cpp": "int test_helper();\n"}, "'helper' in test_helper")

    def test_prose_and_the_standard_library_are_free(self):
        status, output = self.check({"src/ir/c.cpp": (
            '// common\nauto s = "helper", t = R"(utils)";\n'
            "/* manager\n */ std::common_type_t<int> x;\n"
            "int n = 1'000 + common_count('\\'');\n")})
        self.assertEqual(status, 1)
        self.assertIn("1 faults", output)
        self.assertIn("src/ir/c.cpp:5: 'common' in common_count", output)

    def test_long_file_is_a_warning(self):
        status, output = self.check({"src/ir/c.cpp": "\n" * 501})
        self.assertEqual(status, 0, output)
        self.assertIn("warning: src/ir/c.cpp: 501 lines", output)

    def test_picture_lacks_a_layer(self):
        picture = "# base and cost\n```\nbase - ir - emit\n```\n"
        self.assert_fault({"docs/overview.md": picture}, "the layer picture lacks 'cost'")


if __name__ == "__main__":
    unittest.main()
