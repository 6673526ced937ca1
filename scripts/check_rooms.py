#!/usr/bin/env python3
"""Compares the rooms of cmake/Rooms.cmake with what their sources include, and draws them: docs/design/build.md, "Rooms".

    scripts/check_rooms.py [--write] [FOLDER]

Prints a line for each fault: an include from a room that is not declared, a declared room that no source includes from, a room that uses a
later one, two types of one name in headers of one namespace, sources outside all rooms, a folder of more than 35 sources, a room without a
README.md of at most 40 lines that lists the rooms it may use, and docs/rooms.md or docs/rooms.svg that are out of date. --write updates these
two files and the lists in the READMEs. FOLDER: the project's folder (default: that of this script).
Exit code 1 if there is a fault, 64 if cmake/Rooms.cmake cannot be read.
"""

import argparse
import os
import re
import sys
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

MAX_SOURCES = 35
MAX_README_LINES = 40
SOURCE = {".cc", ".h", ".cu", ".cuh"}
PUBLIC = "include/roundpipe"  # every room may use it
MAY_USE = re.compile(r"^May use: ([^.]*)\.", re.MULTILINE)
OTHERS = ("tests", "benchmarks", "examples")  # folders whose sources are in no room; their sizes are limited too
NO_SOURCES = ("build", "docs", "scripts", "tools", "cmake")


class Unreadable(Exception):
    pass


@dataclass
class Room:
    name: str
    uses: list[str]
    sees_libtorch: bool
    sources: list[Path] = field(default_factory=list)
    arrows: dict[str, int] = field(default_factory=Counter)  # by room: how many of the sources include from it

    @property
    def part(self) -> str:
        return self.name.split("/")[0]


def read_rooms(path: Path) -> list[Room]:
    rooms = []
    for call in re.findall(r"^rp_room\(([^)]*)\)", path.read_text(), re.MULTILINE):
        words = call.split()
        start = words.index("USES") + 1 if "USES" in words else len(words)
        rooms.append(Room(words[0], words[start:], "LIBTORCH" in words))
    if not rooms:
        raise Unreadable(f"{path} declares no room")
    return rooms


def folders_with_sources(root: Path) -> dict[str, list[Path]]:
    """Returns the sources of the whole tree by folder."""
    found = defaultdict(list)
    for folder, below, names in os.walk(root):
        top = Path(folder) == root
        below[:] = sorted(name for name in below if not name.startswith(".") and not (top and name in NO_SOURCES))
        for name in sorted(names):
            if Path(name).suffix in SOURCE:
                found[str(Path(folder).relative_to(root))].append(Path(folder) / name)
    return found


def assign_sources(rooms: list[Room], folders: dict[str, list[Path]]) -> list[str]:
    """Assigns to each room the sources of its folder, and of the folders below it that are not
    rooms. Returns faults."""
    faults = []
    by_name = {room.name: room for room in rooms}
    public = Room(PUBLIC, [], False)
    for folder, sources in folders.items():
        place = folder
        while place and place not in by_name and place != PUBLIC:
            place = str(Path(place).parent) if "/" in place else ""
        if place == PUBLIC:
            public.sources += sources
        elif place:
            by_name[place].sources += sources
        elif folder.split("/")[0] not in OTHERS:
            faults.append(f"{folder}: its sources are in no room of cmake/Rooms.cmake")
        elif len(sources) > MAX_SOURCES:
            faults.append(f"{folder}: {len(sources)} sources, at most {MAX_SOURCES}; give some a folder of their own")
    rooms.insert(0, public)
    return faults


def room_of(include: str, names: list[str]) -> str | None:
    place = f"include/{include}" if include.startswith("roundpipe/") else include
    fits = [name for name in names if place.startswith(name + "/")]
    return max(fits, key=len) if fits else None


def find_arrows(rooms: list[Room]) -> list[str]:
    faults = []
    names = [room.name for room in rooms]
    for room in rooms:
        allowed = {room.name, PUBLIC, *room.uses}
        for source in room.sources:
            targets = {}
            for line, text in enumerate(source.read_text().splitlines(), 1):
                include = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', text)
                target = room_of(include[1], names) if include else None
                if target is not None and target != room.name:
                    targets.setdefault(target, line)
            for target, line in targets.items():
                room.arrows[target] += 1
                if target not in allowed:
                    faults.append(f"{source}:{line}: {room.name} includes from {target}, which cmake/Rooms.cmake does not declare")
    return faults


def find_equal_names(rooms: list[Room], root: Path) -> list[str]:
    """Finds types that have the same name in one namespace. They break the one-definition rule once
    a program contains both, and no linker reports it."""
    places = defaultdict(list)
    for room in rooms:
        for source in (path for path in room.sources if path.suffix in (".h", ".cuh")):
            namespaces = []
            for line, text in enumerate(source.read_text().splitlines(), 1):
                if opened := re.match(r"(?:inline )?namespace( [\w:]+)? ?\{", text):
                    namespaces.append((opened[1] or f" {source}").strip())
                elif re.match(r"\}  // namespace", text):
                    namespaces.pop()
                elif named := re.match(r"(?:class|struct|union|enum class|enum)\s+(\w+)(?: final)?(?:\s*:(?!:)[^;]*)?\s*\{", text):
                    places["::".join([*namespaces, named[1]])].append(f"{source.relative_to(root)}:{line}")
    return [f"{name} is defined in {' and in '.join(found)}; name one of them otherwise" for name, found in places.items() if len(found) > 1]


def uses_text(room: Room) -> str:
    text = "May use: " + (", ".join(f"`{used}`" for used in room.uses) or "nothing but the standard library and libc") + "."
    return textwrap.fill(text, 138, break_long_words=False, break_on_hyphens=False)


def write_uses(rooms: list[Room], root: Path):
    for room in rooms:
        readme = root / room.name / "README.md"
        if readme.is_file():
            readme.write_text(MAY_USE.sub(lambda _: uses_text(room), readme.read_text(), count=1))


def check_declarations(rooms: list[Room], root: Path) -> list[str]:
    faults = []
    seen = set()
    for room in rooms:
        for used in room.uses:
            if used not in seen:
                faults.append(f"cmake/Rooms.cmake: {room.name} uses {used}, which is no room before it")
            elif room.arrows[used] == 0:
                faults.append(f"cmake/Rooms.cmake: {room.name} uses {used}, but none of its sources includes from it")
        seen.add(room.name)
        if len(room.sources) > MAX_SOURCES:
            faults.append(f"{room.name}: {len(room.sources)} sources, at most {MAX_SOURCES}; make a room inside it")
        readme = root / room.name / "README.md"
        if not readme.is_file():
            faults.append(f"{readme}: is missing: what the room is for, its types in reading order, what it may use")
            continue
        text = readme.read_text()
        listed = MAY_USE.search(text)
        if len(text.splitlines()) > MAX_README_LINES:
            faults.append(f"{readme}: has more than {MAX_README_LINES} lines")
        if listed is None or listed[0].split() != uses_text(room).split():
            faults.append(f"{readme}: must say '{' '.join(uses_text(room).split())}'")
    return faults


def purpose(room: Room, root: Path) -> str:
    """Returns the first paragraph of the room's README."""
    readme = root / room.name / "README.md"
    paragraphs = readme.read_text().split("\n\n") if readme.is_file() else []
    return " ".join(paragraphs[1].split()) if len(paragraphs) > 1 else ""


def page_of(rooms: list[Room], root: Path) -> str:
    lines = ["<!-- Made by scripts/check_rooms.py --write. -->", "# Rooms", "",
             "Each room is a folder with a library of its own and a README. A room uses rooms above it in this list only;",
             "[cmake/Rooms.cmake](../cmake/Rooms.cmake) declares which, and `scripts/test.sh` fails on an include that it does not declare.", "",
             "![The rooms, their sizes, and which uses which](rooms.svg)", "",
             "A row is a room, a column one that it uses: the number says how many of its sources include from there. Above the diagonal there",
             "is nothing. Orange rows see LibTorch.", "", "| room | sources | what it is for |", "|---|---|---|"]
    lines += [f"| [{room.name}](../{room.name}/README.md) | {len(room.sources)} | {purpose(room, root)} |" for room in rooms]
    return "\n".join(lines) + "\n"


def picture_of(rooms: list[Room]) -> str:
    cell, left, top = 18, 210, 150
    width, height = left + cell * len(rooms) + 60, top + cell * len(rooms) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif" font-size="11">', f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    place = {room.name: i for i, room in enumerate(rooms)}
    for i, room in enumerate(rooms):
        x, y = left + i * cell, top + i * cell
        starts_part = i > 0 and rooms[i - 1].part != room.part
        if starts_part:
            out.append(f'<path d="M10 {y}H{x}M{x} {y}V{height - 10}" stroke="#999999" stroke-width="0.6"/>')
        out.append(f'<text x="{left - 34}" y="{y + 13}" text-anchor="end" fill="{"#b34700" if room.sees_libtorch else "#222222"}">'
                   f'{escape(room.name)}</text>')
        out.append(f'<text x="{left - 6}" y="{y + 13}" text-anchor="end" fill="#777777">{len(room.sources)}</text>')
        out.append(f'<text transform="translate({x + 13} {top - 6}) rotate(-60)" fill="#222222">{escape(room.name)}</text>')
        out.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="#555555"/>')
        for target, count in sorted(room.arrows.items(), key=lambda arrow: place[arrow[0]]):
            at = left + place[target] * cell
            shade = "#d9480f" if place[target] > i else "#f2b27a" if room.sees_libtorch else "#9ecae1"
            out.append(f'<rect x="{at + 0.5}" y="{y + 0.5}" width="{cell - 1}" height="{cell - 1}" fill="{shade}"/>')
            out.append(f'<text x="{at + cell / 2}" y="{y + 13}" text-anchor="middle" font-size="9" fill="#222222">{count}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    root = options.folder
    try:
        rooms = read_rooms(root / "cmake/Rooms.cmake")
    except (OSError, Unreadable) as error:
        print(f"check_rooms.py: {error}", file=sys.stderr)
        return 64
    faults = assign_sources(rooms, folders_with_sources(root))
    faults += find_arrows(rooms)
    faults += find_equal_names(rooms, root)
    if options.write:
        write_uses(rooms, root)
    faults += check_declarations(rooms, root)
    for path, text in ((root / "docs/rooms.md", page_of(rooms, root)), (root / "docs/rooms.svg", picture_of(rooms))):
        if options.write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            faults.append(f"{path}: is not what the rooms are; run scripts/check_rooms.py --write")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
