#!/usr/bin/env python3
"""Tests each fault that scripts/check_rooms.py detects, in a small tree of rooms."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/check_rooms.py"
ROOMS = """\
rp_room(low)
rp_room(high
        USES low)
rp_room(high/inner USES low high)
"""


class CheckRoomsTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.root = Path(self.directory.name)
        self.write("cmake/Rooms.cmake", ROOMS)
        self.write("include/roundpipe/error.h", "")
        self.write("low/brick.h", '#include <vector>\n#include "roundpipe/error.h"\n')
        self.write("high/wall.h", '#include "low/brick.h"\n')
        self.write("high/inner/door.cc", '#include "high/inner/door.h"\n#include "high/wall.h"\n#include "low/brick.h"\n')
        self.write("high/inner/door.h", "")
        for room in ("include/roundpipe", "low", "high", "high/inner"):
            self.write(f"{room}/README.md", f"# {room}\n\nHolds\nup the roof.\n\nMay use: `x`. No more.\n")
        self.run_check("--write")

    def write(self, name: str, text: str):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_check(self, *options: str) -> tuple[int, str]:
        process = subprocess.run([sys.executable, SCRIPT, *options, self.root], capture_output=True, text=True, check=False)
        return process.returncode, process.stdout + process.stderr

    def found(self, *parts: str):
        code, text = self.run_check()
        self.assertEqual(code, 1, text)
        for part in parts:
            self.assertIn(part, text)

    def test_rooms_as_they_are_declared_are_no_fault(self):
        self.assertEqual(self.run_check(), (0, ""))
        page = (self.root / "docs/rooms.md").read_text()
        self.assertIn("| [high/inner](../high/inner/README.md) | 2 | Holds up the roof. |", page)
        picture = (self.root / "docs/rooms.svg").read_text()
        self.assertIn(">high/inner<", picture)
        self.assertIn("\nMay use: `low`, `high`. No more.\n", (self.root / "high/inner/README.md").read_text())
        self.assertIn("\nMay use: nothing but the standard library and libc. No more.\n", (self.root / "low/README.md").read_text())

    def test_an_include_that_is_not_declared(self):
        self.write("low/brick.h", '\n#include "high/wall.h"\n')
        self.found("low/brick.h:2: low includes from high, which cmake/Rooms.cmake does not declare")

    def test_an_include_from_a_room_inside_is_one_from_another_room(self):
        self.write("high/wall.h", '#include "low/brick.h"\n#include "high/inner/door.h"\n')
        self.found("high/wall.h:2: high includes from high/inner")

    def test_a_declared_room_that_nothing_is_included_from(self):
        self.write("high/wall.h", "")
        self.found("high uses low, but none of its sources includes from it")

    def test_a_room_that_uses_a_later_one(self):
        self.write("cmake/Rooms.cmake", ROOMS.replace("rp_room(low)", "rp_room(low USES high)"))
        self.found("low uses high, which is no room before it")

    def test_sources_outside_all_rooms(self):
        self.write("shed/tool.cc", "")
        self.write("tests/shed/tool_test.cc", "")
        self.found("shed: its sources are in no room")
        self.assertNotIn("tests/shed", self.run_check()[1])

    def test_folders_of_too_many_sources(self):
        for i in range(35):
            self.write(f"low/brick_{i}.cc", "")
            self.write(f"tests/low/brick_{i}_test.cc", "")
        self.write("tests/low/one_more_test.cc", "")
        self.found("low: 36 sources, at most 35; make a room inside it", "tests/low: 36 sources, at most 35")

    def test_a_room_without_a_short_readme(self):
        (self.root / "low/README.md").unlink()
        self.write("high/README.md", "# high\n" + "line\n" * 40)
        self.found("low/README.md: is missing", "high/README.md: has more than 40 lines")

    def test_a_readme_that_lists_other_rooms(self):
        self.write("high/README.md", "# high\n\nMay use: `high/inner`.\n")
        self.found("high/README.md: must say 'May use: `low`.'")

    def test_two_types_of_one_name(self):
        self.write("low/brick.h", "namespace rp {\nstruct Brick {\n};\nclass Ours {\n};\n}  // namespace rp\nnamespace rp::other {\nstruct Brick {};\n}  // namespace\n")
        self.write("high/wall.h", '#include "low/brick.h"\nnamespace rp {\nnamespace {\nclass Ours {};\n}  // namespace\nclass Brick final : public Wall {\n')
        self.found("rp::Brick is defined in low/brick.h:2 and in high/wall.h:6")
        self.assertNotIn("Ours", self.run_check()[1])

    def test_a_page_that_is_out_of_date(self):
        self.write("low/mortar.h", "")
        self.found("docs/rooms.md: is not what the rooms are; run scripts/check_rooms.py --write", "docs/rooms.svg: is not")
        self.run_check("--write")
        self.assertEqual(self.run_check()[0], 0)

    def test_no_declarations(self):
        self.write("cmake/Rooms.cmake", "# nothing\n")
        code, text = self.run_check()
        self.assertEqual(code, 64)
        self.assertIn("declares no room", text)


if __name__ == "__main__":
    unittest.main()
