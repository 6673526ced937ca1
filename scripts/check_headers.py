#!/usr/bin/env python3
"""Fails if a public header has a declaration without a comment. The rule: docs/design/build.md, "Public headers".

    scripts/check_headers.py include/roundpipe

Prints FILE:LINE: what is missing, for each finding. Exit code 1 if there is one, 64 if a header cannot be read.
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = re.compile(r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)|(?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)|(?P<string>R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*")|
    (?P<char>(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+')|
    (?P<word>operator[ ]*(?:\(\)|[^\w\s(]+)|[A-Za-z_]\w*)|(?P<number>[0-9][\w.']*)|(?P<space>\s+)|(?P<punct>::|->|.)""",
                   re.VERBOSE | re.DOTALL | re.MULTILINE)
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
TYPES = ("class", "struct", "union", "enum")


class Unreadable(Exception):
    pass


@dataclass
class Token:
    text: str
    kind: str
    line: int


@dataclass
class Declaration:
    kind: str
    names: list[str]
    first: int  # line number
    last: int
    head_last: int  # the line number at which the part before a body ends
    exempt: bool = False
    members: list["Declaration"] = field(default_factory=list)


class Comments:
    """Comments by line number: those on lines of their own, and those after code."""

    def __init__(self):
        self.own: dict[int, str] = {}
        self.behind: dict[int, str] = {}

    def above(self, line: int) -> str:
        """Returns the block of comment lines that ends directly above the line."""
        lines = []
        while line - 1 in self.own:
            line -= 1
            lines.insert(0, self.own[line])
        return "\n".join(lines)


def read_tokens(text: str) -> tuple[list[Token], Comments]:
    tokens, comments, line, code_on_line = [], Comments(), 1, False
    for match in TOKEN.finditer(text):
        kind, word = match.lastgroup, match.group()
        if kind == "comment":
            target = comments.behind if code_on_line else comments.own
            for i, part in enumerate(word.split("\n")):
                target[line + i] = part.strip().strip("/*").strip()
        elif kind not in ("space", "directive"):
            tokens.append(Token(word, kind, line))
            code_on_line = True
        line += word.count("\n")
        if "\n" in word:
            code_on_line = False
    return tokens, comments


def end_of_group(tokens: list[Token], i: int) -> int:
    """Returns the index after the bracket that closes the one at i. Inside angle brackets, only
    brackets are matched."""
    stack = [CLOSING[tokens[i].text]]
    while stack:
        i += 1
        if i == len(tokens):
            raise Unreadable("brackets without an end")
        text = tokens[i].text
        if text == stack[-1]:
            stack.pop()
        elif text in "([{" or (text == "<" and stack[-1] == ">"):
            stack.append(CLOSING[text])
        elif text in ")]}":
            raise Unreadable(f"line {tokens[i].line}: {text} without a beginning")
    return i + 1


def end_of_head(tokens: list[Token], i: int, end: int) -> tuple[int, list[Token]]:
    """Finds the `;` that ends the declaration starting at i, or the `{` of its body. Returns its
    index, and the tokens at the top level; a group in brackets is one token, e.g. "(" for a
    parameter list."""
    top: list[Token] = []
    while i < end and tokens[i].text != ";":
        text, before = tokens[i].text, top[-1].text if top else ""
        if text == "{" and not is_initializer(top):
            return i, top
        if text in "([{" or (text == "<" and (before == "template" or top and top[-1].kind == "word")):
            top.append(Token(text, "group", tokens[i].line))
            i = end_of_group(tokens, i)
        else:
            top.append(tokens[i])
            i += 1
    if i == end:
        raise Unreadable(f"line {tokens[-1].line}: a declaration without an end")
    return i, top


def is_initializer(top: list[Token]) -> bool:
    """Returns whether a `{` after these tokens begins a value, and not a body."""
    texts = [token.text for token in top]
    if any(word in texts for word in (*TYPES, "namespace")) and "(" not in texts and "=" not in texts:
        return False
    if "=" in texts or "requires" in texts[-2:] or "(" not in texts:
        return True
    # In a list of member initializers, `: a(1), b{2} {`, a body follows `)` or `}`.
    after_parameters = texts[texts.index("(") + 1:]
    return ":" in after_parameters and texts[-1] not in "({"


def without_template(top: list[Token]) -> list[Token]:
    """Removes a leading `template <...>`, and attributes."""
    result = [token for token in top if token.text != "["]
    while len(result) > 1 and result[0].text == "template":
        result = result[2:]
    return result


def read_scope(tokens: list[Token], i: int, end: int, owner: str, public: bool) -> list[Declaration]:
    """Returns the declarations between i and end. In a class (then `owner` is its name), only the public ones."""
    result = []
    while i < end:
        if tokens[i].text == ";":
            i += 1
            continue
        if owner and tokens[i].text in ("public", "protected", "private") and tokens[i + 1].text == ":":
            public = tokens[i].text == "public"
            i += 2
            continue
        start = i
        i, top = end_of_head(tokens, i, end)
        head, body = without_template(top), tokens[i].text == "{"
        texts = [token.text for token in head]
        head_last = tokens[i].line
        is_type = next((word for word in texts if word in TYPES), None) if "(" not in texts and "=" not in texts else None
        after = end_of_group(tokens, i) if body else i + 1
        declaration = None
        if body and "namespace" in texts:
            # Namespaces that are internal or have no name are not for users.
            if texts[-1] not in ("internal", "namespace"):
                result += read_scope(tokens, i + 1, after - 1, "", True)
        elif is_type and body:
            name = type_name(texts)
            declaration = Declaration(is_type, [name], tokens[start].line, tokens[after - 1].line, head_last)
            if is_type == "enum":
                declaration.members = enumerators(tokens, i + 1, after - 1)
            else:
                declaration.members = read_scope(tokens, i + 1, after - 1, name, is_type != "class")
            while after < end and tokens[after].text != ";":  # variables of the type
                after += 1
        elif not is_type:
            declaration = plain_declaration(texts, owner, tokens[start].line, tokens[after - 1].line, head_last)
        i = after
        if declaration and public:
            result.append(declaration)
    return result


def type_name(texts: list[str]) -> str:
    words = [word for word in texts[:texts.index(":") if ":" in texts else None] if word not in ("<", "final")]
    return words[-1] if words[-1] not in TYPES else "without a name"


def enumerators(tokens: list[Token], i: int, end: int) -> list[Declaration]:
    result = []
    while i < end:
        start = i
        while i < end and tokens[i].text != ",":
            i = end_of_group(tokens, i) if tokens[i].text in "([{" else i + 1
        if i > start:
            last = tokens[i - 1].line
            result.append(Declaration("enumerator", [tokens[start].text], tokens[start].line, last, last))
        i += 1
    return result


def plain_declaration(texts: list[str], owner: str, first: int, last: int, head_last: int) -> Declaration | None:
    """Returns a function, a variable, a field or an alias; None if nothing is declared."""
    if texts[0] in ("friend", "static_assert", "extern") or (texts[0] == "using" and "=" not in texts):
        return None
    if texts[0] == "using":
        return Declaration("alias", [texts[1]], first, last, head_last)
    value = texts.index("=") if "=" in texts else len(texts)
    if "(" in texts[:value]:
        parameters = texts.index("(")
        name = texts[parameters - 1]
        exempt = "~" in texts[:parameters] or "override" in texts or texts[-1] in ("default", "delete")
        return Declaration("constructor" if name == owner else "function", [name], first, last, head_last, exempt)
    names, before = [], ""
    for text in [*texts, ";"]:
        if text in ("=", "{", ",", ";") and before:
            names.append(before)
        before = "" if text in ("=", "{") else before if text == "[" else text
        if text == ",":
            before = ""
    names = [name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name)][:1 + texts.count(",")]
    return Declaration("field" if owner else "variable", names, first, last, head_last)


def names_it(comment: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", comment) is not None


def undocumented(declarations: list[Declaration], comments: Comments, type_comment: str):
    """Yields (declaration, name) for each name that has no comment."""
    shared, covered, previous = "", set(), None
    for declaration in declarations:
        above = comments.above(declaration.first)
        one_line = declaration.first == declaration.last
        goes_on = not above and one_line and previous is not None and declaration.first - previous.last <= 1
        if not goes_on:
            shared, covered = above, set()
        previous = declaration if one_line else None
        behind = "\n".join(filter(None, (comments.behind.get(i) for i in range(declaration.first, declaration.head_last + 1))))
        for name in declaration.names:
            named = names_it(shared, name) or name in covered
            in_type = declaration.kind in ("field", "enumerator") and names_it(type_comment, name)
            if above or behind or named or in_type:
                covered.add(name)
            elif not declaration.exempt:
                yield declaration, name
        yield from undocumented(declaration.members, comments, above or behind)


def check(file: Path) -> list[str]:
    tokens, comments = read_tokens(file.read_text())
    findings = []
    if not (comments.own.get(1) and comments.own.get(2)):
        findings.append((1, "the header does not begin with a comment: its name, then what it is for"))
    for declaration, name in undocumented(read_scope(tokens, 0, len(tokens), "", True), comments, ""):
        findings.append((declaration.first, f"{declaration.kind} {name} has no comment"))
    return [f"{file}:{line}: {text}" for line, text in sorted(findings)]


def main(folders: list[str]) -> int:
    files = sorted(file for folder in folders for file in Path(folder).glob("*.h"))
    if not files:
        print("check_headers.py: give a folder with headers", file=sys.stderr)
        return 2
    findings = []
    for file in files:
        try:
            findings += check(file)
        except (OSError, UnicodeDecodeError, Unreadable) as error:
            print(f"check_headers.py: {file}: {error}", file=sys.stderr)
            return 64
    for finding in findings:
        print(finding)
    if findings:
        print(f"{len(findings)} of the public headers' declarations are undocumented; the rule is in docs/design/build.md")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
