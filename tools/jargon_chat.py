#!/usr/bin/env python3
"""Turns the Jargon File (Debian package dict-jargon, public domain) into question-and-answer chat: one JSON object
{"messages": [user, assistant]} a line and entry."""

import argparse
import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

from tool import BAD_INPUT, NO_RESOURCE, ToolError, partial_path, run_tool

BASE64 = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
PART_OF_SPEECH = r"(?:pl\.\s*n|n|vt|vi|v|adj|adv|imp|interj|excl|prov|pref|suff|infix|quant|abbrev|conj|prep|cav)"
MASS_NOUN_ENDINGS = ("ity", "ness", "ism", "ware", "ing", "ics", "graphy", "ology", "ese", "age", "speak", "ance", "ence")


@dataclass
class Entry:
    headword: str
    description: str  # the lines under the headword: pronunciation and part of speech
    body: str         # paragraphs, separated by empty lines


def number(digits: str) -> int:
    """Parses a number of dictd: base 64, most significant digit first."""
    value = 0
    for digit in digits:
        value = value * 64 + BASE64[digit]
    return value


def read_entries(directory: Path) -> list[Entry]:
    index_path, text_path = directory / "jargon.index", directory / "jargon.dict.dz"
    if not index_path.is_file() or not text_path.is_file():
        raise ToolError(NO_RESOURCE, f"{directory}: has no jargon.index and jargon.dict.dz; on Debian: apt-get install dict-jargon")
    text = gzip.decompress(text_path.read_bytes())
    entries = []
    for line_number, line in enumerate(index_path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            word, offset, length = line.split("\t")
            raw = text[number(offset):number(offset) + number(length)].decode("utf-8")
        except (ValueError, KeyError) as error:
            raise ToolError(BAD_INPUT, f"{index_path}: line {line_number} is not 'word, offset, length' of an entry") from error
        if not word.startswith("00-"):
            entries.append(parse_entry(raw))
    return [entry for entry in entries if entry.body]


def parse_entry(raw: str) -> Entry:
    lines = raw.replace("\u00ad", "").split("\n")
    end = 1
    while end < len(lines) and lines[end].strip() and not lines[end].startswith("    "):
        end += 1
    description = " ".join(" ".join(lines[1:end]).split())
    description = re.sub(r"(^|\s)//,?\s*", r"\1", description).strip(" ,")
    return Entry(lines[0].strip(), description, reflow(lines[end:]))


def reflow(lines: list[str]) -> str:
    """Joins the lines of each paragraph. Text with a deeper indent (tables, code) keeps its lines."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n\n".join(clean(paragraph) for paragraph in paragraphs if paragraph)


def clean(lines: list[str]) -> str:
    if any(line.startswith("     ") for line in lines):
        return "\n".join(line[4:].rstrip() for line in lines)
    text = " ".join(" ".join(lines).split())
    text = re.sub(r"\{\s*([^{}]*?)\s*\}", r"\1", text)   # cross references
    return re.sub(r"\s+([.,;:])(?=\s|$)", r"\1", text)  # a line break before a full stop


def kind_of(entry: Entry) -> str:
    """Returns 'noun', 'plural', 'verb' or 'other', by the part of speech or, without one, by the
    beginning of the definition."""
    found = re.search(rf"(?:^|[\s,]){PART_OF_SPEECH}(?=[.,\s]|$)", re.sub(r"/.*/", " ", entry.description))
    if not found:
        found = re.match(rf"1\.\s+{PART_OF_SPEECH}\.", entry.body)
    if found:
        part = re.sub(r"[\s,.\d]", "", found.group())
        return {"pln": "plural", "n": "noun", "v": "verb", "vt": "verb", "vi": "verb"}.get(part, "other")
    definition = re.sub(r"^(?:\[[^\]]*\]\s*|1\.\s+)+", "", entry.body)
    if re.match(r"(?:A|An|The|One|Any)\s", definition):
        return "noun"
    return "verb" if re.match(r"To\s", definition) else "other"


def article(word: str) -> str:
    """Returns 'a' or 'an', by the sound that the spelling suggests."""
    first = re.split(r"[\s-]", word)[0]
    if re.fullmatch(r"[A-Z0-9/&]{2,}s?", first) and not re.match(r"[A-Z]*[AEIOU][^AEIOU]", first[1:]):
        return "an" if first[0] in "AEFHILMNORSX8" else "a"  # spelled letter by letter
    lower = first.lower()
    if re.match(r"(?:eu|uni(?!n)|use|usu|ubi|uu|one|once)", lower):
        return "a"
    return "an" if re.match(r"(?:[aeiou8]|hour|honest|heir|x(?![aeiou])|f(?:u|t)p$)", lower) else "a"


def takes_article_in_text(entry: Entry) -> bool:
    return bool(re.search(rf"\b[Aa]n?\s[‘“]?{re.escape(entry.headword)}\b", entry.body))


def takes_article(entry: Entry) -> bool:
    """Returns whether the noun is countable: as the entry itself uses it, otherwise by its ending and capitals."""
    if takes_article_in_text(entry):
        return True
    last = entry.headword.split()[-1]
    is_name = not entry.headword[0].islower() and not last.islower()
    if last.lower().endswith(MASS_NOUN_ENDINGS) or is_name or not entry.headword[0].isalpha():
        return False
    return not re.match(r"(?:the|an?)\s", entry.headword, re.IGNORECASE)


def question(entry: Entry) -> str:
    word = entry.headword
    kind = kind_of(entry) if word[-1] not in ".!?" else "other"
    if kind == "noun" and re.search(r"^[a-z].*[a-z](?<![suia])(?<!ic)s$", word) and not takes_article_in_text(entry):
        kind = "plural"
    if kind == "plural":
        return f"What are {word}?"
    if kind == "noun":
        return f"What is {article(word)} {word}?" if takes_article(entry) else f"What is {word}?"
    if kind == "verb":
        return f"What does 'to {word}' mean?"
    return f"What does '{word}' mean?"


def answer(entry: Entry) -> str:
    """Returns the entry in the form of the Jargon File."""
    separator = " " if entry.description.startswith("/") else ", "
    head = entry.headword + (separator + entry.description if entry.description else "")
    return f"{head}\n\n{entry.body}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the .jsonl file to write")
    parser.add_argument("--dictionary", type=Path, default=Path("/usr/share/dictd"), metavar="DIR",
                        help="where jargon.index and jargon.dict.dz are (default: %(default)s)")
    arguments = parser.parse_args()
    entries = read_entries(arguments.dictionary)
    with partial_path(arguments.output) as partial, open(partial, "w", encoding="utf-8") as file:
        for entry in entries:
            messages = [{"role": "user", "content": question(entry)}, {"role": "assistant", "content": answer(entry)}]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    print(f"{arguments.output}: {len(entries)} entries")


if __name__ == "__main__":
    run_tool(main)
