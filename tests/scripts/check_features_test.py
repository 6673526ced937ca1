#!/usr/bin/env python3
"""scripts/check_features.py considers a feature proven only if all tests that its page names ran and passed."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import check_features

HEAD = "# Features\nText with a | in it.\n\n| feature | here | proof |\n|---|---|---|\n"
RESULTS = {"A.Works": "run", "A.Fails": "fail", "A.IsSkipped": "notrun", "A.IsOff": "disabled", "system.a.Test": "run",
           "Threads/B.Works/4-byte object &lt;00-00&gt;": "run", "Processes/B.Works/4-byte object &lt;01-00&gt;": "run",
           "Threads/B.Half/0": "run", "Threads/B.Half/1": "fail", "Typed/0.C/D": "run"}


class CheckFeaturesTest(unittest.TestCase):
    def check(self, rows: str, results: dict = RESULTS, head: str = HEAD) -> tuple[int, str]:
        """Returns the exit code and the output for a page with these rows."""
        output = io.StringIO()
        cases = "".join(f'<testcase name="{name}" status="{status}"/>' for name, status in results.items())
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), contextlib.redirect_stdout(output), \
             contextlib.redirect_stderr(output):
            Path("features.md").write_text(head + rows)
            Path("release.xml").write_text(f'<testsuite name="a">{cases}</testsuite>')
            code = check_features.main(["features.md", "release.xml"])
        return code, output.getvalue()

    def test_tests_that_passed_prove_a_feature(self):
        code, output = self.check("| one | `f()` | `A.Works` |\n| two | | `system.a.Test`, `A.Works` |\n\n"
                                  "| feature | proof |\n|---|:-:|\n| three | `B.Works` |\n| four | `Threads/B.Half/0` |\n")
        self.assertEqual((code, output), (0, "features.md: 4 of 4 features are proven, by 4 tests; none is open\n"))

    def test_a_test_that_is_missing_or_did_not_pass_proves_nothing(self):
        for test in ("A.Fails", "A.IsSkipped", "A.IsOff", "A.WorksNot", "A.Work", "B.Half", "Works", ""):
            code, output = self.check(f"| good | | `A.Works` |\n| bad | | `A.Works` and `{test}` |\n")
            self.assertEqual(code, 1 if test else 0, test)
            if test:
                self.assertIn(f"features.md:7: bad: {test} did not run", output)
                self.assertIn("1 of 2 features are proven", output)

    def test_names_are_checked_before_the_tests_run(self):
        listed = json.dumps({"tests": [{"name": "Threads/B.Works/4-byte object <00-00>"}, {"name": "system.a.Test"}]})
        for proofs, code in (("`B.Works`, `system.a.Test`", 0), ("`B.Works`, `B.Work`", 1), ("open: later", 0), ("`Threads/B.Works`", 1)):
            output = io.StringIO()
            with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), contextlib.redirect_stdout(output):
                Path("features.md").write_text(HEAD + f"| one | | {proofs} |\n")
                Path("tests.json").write_text(listed)
                self.assertEqual(check_features.main(["--names", "features.md", "tests.json"]), code, proofs)
            self.assertEqual("features.md:6: one: there is no test" in output.getvalue(), code == 1)

    def test_a_list_of_tests_that_cannot_be_read_is_no_success(self):
        for text in ("", "{}", "[", None):
            with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), contextlib.redirect_stderr(io.StringIO()):
                Path("features.md").write_text(HEAD + "| one | | `A.Works` |\n")
                if text is not None:
                    Path("tests.json").write_text(text)
                self.assertEqual(check_features.main(["--names", "features.md", "tests.json"]), 64, text)

    def test_a_test_must_pass_wherever_it_runs(self):
        name = "Threads/B.Works/4-byte object &lt;00-00&gt;"
        self.assertEqual(self.check("| one | | `B.Works` |\n", RESULTS | {name: "fail"})[0], 1)

    def test_what_is_open_is_counted_and_named(self):
        code, output = self.check("| one | | `A.Works` |\n| two | | open: later, as `A.Fails` |\n")
        self.assertEqual((code, output), (0, "features.md: 1 of 2 features are proven, by 1 tests; open:\n  two\n"))

    def test_a_row_without_proof_is_no_success(self):
        for row in ("| one | | |", "| one | | soon |", "| one | `A.Works` | opened |"):
            code, output = self.check(row + "\n")
            self.assertEqual(code, 1)
            self.assertIn("features.md:6: one: names no test and is not open", output)

    def test_a_page_that_cannot_be_read_is_no_success(self):
        self.assertEqual(self.check("")[0], 64)
        self.assertEqual(self.check("| one | | `A.Works` |\n", head="| a | b |\n|---|---|\n")[0], 64)
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(check_features.main([]), 2)
            self.assertEqual(check_features.main(["none.md", "none.xml"]), 64)


if __name__ == "__main__":
    unittest.main()
