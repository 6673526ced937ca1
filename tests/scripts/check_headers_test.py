#!/usr/bin/env python3
"""scripts/check_headers.py finds every kind of declaration without a comment, and nothing else."""

import contextlib
import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_headers.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
import check_headers
HEADER = "// a.h\n// What it is for.\n#pragma once\n#define MACRO(x) \\\n  x {\n\nnamespace rp {\n\n"


class CheckHeadersTest(unittest.TestCase):
    def check(self, text: str, header: str = HEADER) -> tuple[int, str, str]:
        """Returns the exit code, standard output and standard error for a header with this text."""
        output, errors = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), \
             contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            Path("a.h").write_text(header + text + "\n}  // namespace rp\n")
            code = check_headers.main(["."])
        return code, output.getvalue(), errors.getvalue()

    def findings(self, text: str) -> list[str]:
        """Returns the findings for this text inside namespace rp, as "line: what", with lines counted from its
        first."""
        code, output, errors = self.check(text)
        self.assertEqual(errors, "")
        findings = [line.split(":", 2)[1:] for line in output.splitlines() if line.startswith("a.h:")]
        self.assertEqual(code, 1 if findings else 0)
        return [f"{int(line) - HEADER.count(chr(10))}:{what}" for line, what in findings]

    def test_each_kind_of_declaration_needs_a_comment(self):
        for text, finding in {
            "class A {};": "class A",
            "struct A final : public B<int> {};": "struct A",
            "template <typename T, int N = (2 > 1)>\nclass A {};": "class A",
            "union A {};": "union A",
            "enum class A : int {};": "enum A",
            "void f(int x = 3, std::function<void(int)> g = {});": "function f",
            "[[nodiscard]] std::map<int, std::vector<int>> f();": "function f",
            "inline int f() { return 1 < 2; }": "function f",
            "template <typename T>\n  requires std::is_integral_v<T>\nT f(T t) { if (t) { return t; } return 0; }": "function f",
            "bool operator==(const B& a, const B& b);": "function operator==",
            "using A = std::vector<int>;": "alias A",
            "constexpr int kA = 3;": "variable kA",
            "inline std::function<void(int)> a{};": "variable a",
        }.items():
            with self.subTest(text):
                self.assertEqual(self.findings("\n" + text + "\n"), [f"2: {finding} has no comment"])
                self.assertEqual(self.findings("\n// Says what it is.\n" + text + "\n"), [])

    def test_each_public_member_needs_a_comment(self):
        for text, finding in {
            "A(int x) : b{x}, c(x) {}": "constructor A",
            "explicit A(int x);": "constructor A",
            "virtual void f() = 0;": "function f",
            "void f() const { g({1, 2}); }": "function f",
            "A& operator+=(const A& other);": "function operator+=",
            "bool operator<(const A& other) const { return x < other.x; }": "function operator<",
            "int operator()(int x = 2) const;": "function operator()",
            "int x = 1;": "field x",
            "std::array<int, 3> x{1, 2, 3};": "field x",
            "std::function<void()> x = [] { return; };": "field x",
            "static constexpr int kX = -1;": "field kX",
            "int x[3];": "field x",
            "using X = int;": "alias X",
            "struct X {};": "struct X",
            "enum X {};": "enum X",
        }.items():
            with self.subTest(text):
                start = "// Says what it is for.\nclass A {\n public:\n"
                self.assertEqual(self.findings(start + text + "\n};"), [f"4: {finding} has no comment"])
                self.assertEqual(self.findings(start + "// Says what.\n" + text + "\n};"), [])
                self.assertEqual(self.findings(start + " private:\n" + text + "\n protected:\n" + text + "\n};"), [])

    def test_members_of_members_and_enumerators_count(self):
        self.assertEqual(self.findings("// A.\nstruct A {\n  // B.\n  struct B {\n    int x;\n  };\n};"), ["5: field x has no comment"])
        self.assertEqual(self.findings("// A.\nenum A {\n  kB = 1,  // why\n  kC,\n};"), ["4: enumerator kC has no comment"])
        self.assertEqual(self.findings("// A, which is kB or kC.\nenum A { kB, kC };"), [])

    def test_two_fields_in_one_declaration_both_need_their_name(self):
        self.assertEqual(self.findings("// A of `x`.\nstruct A {\n  int x = f(1, 2), y;\n};"), ["3: field y has no comment"])

    def test_a_comment_behind_counts_for_its_line_only(self):
        self.assertEqual(self.findings("// A.\nstruct A {\n  int x;  // metres\n  int y;\n};"), ["4: field y has no comment"])
        self.assertEqual(self.findings("// A.\nstruct A {\n  void f() {\n    g();  // inside\n  }\n};"), ["3: function f has no comment"])

    def test_a_comment_above_a_run_of_lines_counts_for_the_first_for_overloads_and_for_what_it_names(self):
        run = "// Gives g() and more.\nint f();\nint f(int);\nint g();\nint h();\n"
        self.assertEqual(self.findings(run), ["5: function h has no comment"])
        self.assertEqual(self.findings(run.replace("int g", "\nint g")), ["5: function g has no comment", "6: function h has no comment"])
        self.assertEqual(self.findings("// Gives more than gg().\nint f();\nint g();\n"), ["3: function g has no comment"])

    def test_the_comment_of_a_type_counts_for_the_fields_that_it_names(self):
        self.assertEqual(self.findings("// Adds `x` to f().\nstruct A {\n  int x;\n  int f();\n};"), ["4: function f has no comment"])

    def test_an_empty_line_parts_a_comment_from_what_follows(self):
        self.assertEqual(self.findings("// A remark.\n\nint f();\n"), ["3: function f has no comment"])

    def test_what_says_nothing_new_needs_none(self):
        self.assertEqual(self.findings(
            "class Later;\nnamespace internal {\nint f();\nnamespace deep { class A {}; }\n}\nstatic_assert(1 < 2);\n"
            "// A.\nclass A : public B {\n public:\n  using B::B;\n  A() = default;\n  A(const A&) = delete;\n"
            "  A& operator=(const A&) = delete;\n  virtual ~A() { f(); }\n  int f() override;\n  friend class C;\n  class Impl;\n"
            "  // Says what.\n  int g();\n private:\n  int h_ = 0;\n};\n"), [])

    def test_comments_and_code_inside_of_strings_are_neither(self):
        self.assertEqual(self.findings('// A.\nconst char* a = "{ // }";\n\nint f();\n'), ["4: function f has no comment"])
        self.assertEqual(self.findings("// A.\nconst char a = '{';\n\nint f(int n = 1'000);\n"), ["4: function f has no comment"])

    def test_the_header_begins_with_a_comment(self):
        _, output, _ = self.check("", header="#pragma once\nnamespace rp {\n")
        self.assertIn("a.h:1: the header does not begin with a comment", output)

    def test_what_cannot_be_read_is_an_error_and_no_success(self):
        for text in ("// A.\nclass A {", "}}", "// A.\nint f("):
            code, _, errors = self.check(text)
            self.assertEqual(code, 64, text)
            self.assertIn("a.h: ", errors)
        for words, code in (([], 2), (["none"], 2)):
            self.assertEqual(subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, timeout=30).returncode, code)


if __name__ == "__main__":
    unittest.main()
