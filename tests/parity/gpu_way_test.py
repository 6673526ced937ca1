#!/usr/bin/env python3
"""Tests the part `families` of scripts/gpu-check.sh without a GPU: models take the code path of a GPU with the emulated kernels, and their values
meet the bars; damaged, missing and refused values do not."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools" / "gpu_check"))

import all_checks  # noqa: E402
import family_checks  # noqa: E402
from bench import Bench, Card  # noqa: E402
from checks import NotRun  # noqa: E402
from table import Row, read_rows  # noqa: E402

CASES = Path(os.environ["RP_FAMILY_CASES"])
NVIDIA_SMI = "#!/bin/sh\necho 'NVIDIA Stand-in, 999.1, 81559'\n"
LINE = {"case": "llama/3-7", "bfloat16": 1.25, "of": "logits", "float32": 2e-6, "parameter": "model.norm", "refused": {}, "missing": []}


def case_folders(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/*/expected.safetensors"))


class CasesTest(unittest.TestCase):
    def test_each_family_has_documents_in_some_models_and_all_sizes_are_multiples_of_8(self):
        for family in family_checks.FAMILIES:
            folders = list((CASES / family).iterdir())
            packed = [b'"documents"' in (folder / "inputs.safetensors").read_bytes()[:300] for folder in folders]
            self.assertEqual(set(packed), {False, True} if len(folders) > 1 else {False}, family)
            for folder in folders:
                config = json.loads((folder / "config.json").read_text())
                for key in ("hidden_size", "head_dim", "intermediate_size", "moe_intermediate_size", "vocab_size"):
                    self.assertEqual((config.get(key) or 8) % 8, 0, f"{folder}: {key}")

    def test_experts_are_chosen(self):
        for folder in (CASES / "qwen3_moe").iterdir():
            config = json.loads((folder / "config.json").read_text())
            self.assertLess(config["num_experts_per_tok"], config.get("num_experts") or config["num_local_experts"])

    def test_adapters_are_of_each_kind(self):
        configs = [json.loads((folder / "adapter/adapter_config.json").read_text()) for folder in (CASES / "adapters").iterdir()]
        self.assertEqual({bool(config.get("use_dora")) for config in configs}, {False, True})
        experts = [folder for folder in (CASES / "adapters").iterdir()
                   if b".experts.0.up_proj.lora_A" in (folder / "adapter/adapter_model.safetensors").read_bytes()]
        self.assertEqual(len(experts), 1)

    def test_models_are_small_enough_for_a_bundle(self):
        sizes = [sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in case_folders(CASES)]
        # 5 models of each family and 2 of odd sizes; one of a family of multimodal models; and the adapters.
        multimodal = sum(len(list((CASES / family).iterdir())) == 1 for family in family_checks.FAMILIES)
        whole = sum(sizes) / len(sizes) * (len(family_checks.FAMILIES) * 7 - multimodal * 6 + 7)
        self.assertLess(whole, 24 << 20)


class RowsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="rp-gpu-way-")
        cls.addClassCleanup(directory.cleanup)
        cls.root = Path(directory.name)
        for folder in ("tools", "scripts"):
            shutil.copytree(SOURCE / folder, cls.root / folder)
        for name in ("bin", "data", "driver", "tests/parity"):
            (cls.root / name).mkdir(parents=True)
        for name in ("families", "distances", "compare_values"):  # these do not need transformers
            shutil.copy(SOURCE / f"tests/parity/{name}.py", cls.root / "tests/parity")
        (cls.root / "data/families").symlink_to(CASES)
        (cls.root / "bin/model_values").symlink_to(os.environ["RP_MODEL_VALUES"])
        (cls.root / "driver/nvidia-smi").write_text(NVIDIA_SMI)
        (cls.root / "driver/nvidia-smi").chmod(0o755)

    def rows(self) -> dict[str, Row]:
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        environment |= {"PATH": f"{self.root}/driver:{os.environ['PATH']}", "RP_PYTHON": sys.executable, "RP_GPU_SCRATCH": str(self.root / "scratch")}
        table = self.root / "rows"
        process = subprocess.run([self.root / "scripts/gpu-check.sh", "--table", table, "--seconds", "200", "families"], env=environment,
                                 capture_output=True, text=True, timeout=280)
        self.assertIn(process.returncode, (0, 1), process.stderr)
        rows = {each.what: each for each in read_rows(table.read_text())}
        self.assertEqual([*rows], [line.what for each in all_checks.load_all() if each.part == "families" for line in each.lines])
        return {group: rows[what] for group, what in family_checks.GROUPS.items()}

    def outcomes(self, cases: Path) -> dict:
        process = subprocess.run([sys.executable, SOURCE / "tests/parity/compare_values.py", cases], capture_output=True, text=True, timeout=120)
        self.assertEqual(process.returncode, 0, process.stderr)
        return dict(zip(family_checks.GROUPS, family_checks.outcomes_of([json.loads(line) for line in process.stdout.splitlines()]), strict=True))

    def test_values_of_a_gpus_code_path_meet_the_bars_and_damaged_ones_do_not(self):
        rows = self.rows()
        for group, row in rows.items():
            self.assertEqual(row.result, "met", f"{group}: {row}")
        self.assertRegex(rows["llama"].figure, r"^2 of 2 models: bf16 at most \d\.\d\d times \((logits|gradients)\), fp32 at most \d\.\de-\d\d \(\S+\)$")
        odd = len(list((CASES / "odd_sizes").iterdir()))
        self.assertEqual(rows["odd_sizes"].figure, f"{odd} agree, 0 differ, 0 refused")

        # Damages one of each kind of the computed values.
        cases = self.root / "scratch/family_cases"

        def first(group: str) -> Path:
            return min((cases / group).iterdir())

        def damage(folder: Path, dtype: str, value: float) -> None:
            """Replaces one element of the logits."""
            file = folder / f"values-{dtype}.safetensors"
            data = bytearray(file.read_bytes())
            (length,) = struct.unpack_from("<Q", data)
            at = 8 + length + json.loads(data[8:8 + length])["logits"]["data_offsets"][0]
            struct.pack_into("<f", data, at, value)
            file.write_bytes(data)

        damage(first("llama"), "bfloat16", 1e3)
        damage(first("qwen2"), "float32", 1e3)
        damage(first("mistral"), "bfloat16", float("nan"))
        damage(first("odd_sizes"), "float32", float("nan"))
        (first("qwen3") / "values-bfloat16.safetensors").unlink()
        (first("qwen3") / "values-bfloat16.error").write_text("no kernel\nfor this\n")
        (first("olmo3") / "values-float32.safetensors").unlink()
        outcomes = self.outcomes(cases)
        self.assertEqual({group for group, outcome in outcomes.items() if not outcome.is_met},
                         {"llama", "qwen2", "mistral", "odd_sizes", "qwen3", "olmo3"})
        for group, why in (("llama", r"logits in bf16 \d+\.\d\d times as far$"), ("qwen2", r"logits in fp32 \d\.\de\+?-?\d\d away$"),
                           ("mistral", "logits in bf16 nan times as far$"), ("odd_sizes", "logits in fp32 nan away$"),
                           ("qwen3", "refused in bfloat16: no kernel for this$"), ("olmo3", "not reached in time$")):
            self.assertRegex(outcomes[group].why, why)
            self.assertTrue(outcomes[group].figure, group)
        self.assertTrue(outcomes["qwen3"].figure.startswith("1 of 2 models: "))
        self.assertEqual(outcomes["odd_sizes"].figure, f"{odd - 1} agree, 1 differ, 0 refused")


class OutcomesTest(unittest.TestCase):
    def outcome(self, *lines: dict, group: str = "llama"):
        return (family_checks.of_odd_sizes if group == "odd_sizes" else family_checks.of_all)(list(lines))

    def test_the_worst_model_is_the_familys_figure(self):
        outcome = self.outcome(LINE, LINE | {"bfloat16": 1.9, "of": "gradients", "float32": 1e-7})
        self.assertEqual((outcome.figure, outcome.is_met), ("2 of 2 models: bf16 at most 1.90 times (gradients), fp32 at most 2.0e-06 (model.norm)", True))
        for change, why in (({"bfloat16": 2.01}, "3-7: logits in bf16 2.01 times as far"), ({"float32": 1.1e-4}, "3-7: model.norm in fp32 1.1e-04 away"),
                            ({"bfloat16": float("nan")}, "3-7: logits in bf16 nan times as far")):
            outcome = self.outcome(LINE, LINE | change)
            self.assertEqual((outcome.is_met, outcome.why), (False, why))

    def test_a_family_of_which_nothing_was_computed_failed_or_was_not_reached(self):
        nothing = {"case": "llama/3-7", "refused": {"bfloat16": "no kernel"}, "missing": ["float32"]}
        outcome = self.outcome(nothing, nothing)
        self.assertEqual((outcome.figure, outcome.has_failed, outcome.why), ("", True, "3-7 refused in bfloat16: no kernel"))
        late = {"case": "llama/3-7", "refused": {}, "missing": ["bfloat16", "float32"]}
        outcome = self.outcome(late, late)
        self.assertEqual((outcome.figure, outcome.has_failed, outcome.why), ("", False, "the part's time was over"))

    def test_odd_sizes_may_be_refused_and_say_why_but_not_differ(self):
        refused = {"case": "odd_sizes/llama-0-1", "refused": {"float32": "no kernel"}, "missing": []}
        outcome = self.outcome(LINE, refused, group="odd_sizes")
        self.assertEqual((outcome.figure, outcome.is_met), ("1 agree, 0 differ, 1 refused: no kernel", True))
        outcome = self.outcome(LINE, LINE | {"bfloat16": 3.0}, refused, group="odd_sizes")
        self.assertEqual((outcome.figure, outcome.is_met), ("1 agree, 1 differ, 1 refused: no kernel", False))
        late = {"case": "odd_sizes/llama-0-1", "refused": {}, "missing": ["bfloat16", "float32"]}
        outcome = self.outcome(LINE, late, group="odd_sizes")
        self.assertEqual((outcome.figure, outcome.is_met), ("1 agree, 0 differ, 0 refused, 1 not reached in time", False))
        self.assertFalse(self.outcome(late, group="odd_sizes").figure)


# Replaces model_values. The second case ends the process, the fourth reports an error of the GPU, and the program sleeps before the sixth.
PROGRAM = """#!/usr/bin/env python3
import os, sys, time
from pathlib import Path
for folder in map(Path, sys.argv[3:]):
    dtype, number = sys.argv[1], int(folder.name)
    if number == 2:
        os.abort()
    if number == 4:
        (folder / f"values-{dtype}.error").write_text("an illegal address")
        os._exit(3)
    if number == 6:
        time.sleep(60)
    (folder / f"values-{dtype}.safetensors").write_text("")
"""


class LossesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-gpu-way-")
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        self.bench = Bench(Card("c", "d", 1), 18, self.root)
        self.bench.program = lambda name: self.root / name
        self.folders = [self.root / str(i) for i in range(1, 8)]
        for folder in self.folders:
            folder.mkdir()

    def write(self, text: str) -> None:
        (self.root / "model_values").write_text(text)
        (self.root / "model_values").chmod(0o755)

    def test_what_ends_the_process_costs_its_case_and_not_those_behind_it(self):
        self.write(PROGRAM)
        family_checks.compute(self.bench, self.folders, "float32", 6)
        have = [next((end for end in ("safetensors", "error") if (folder / f"values-float32.{end}").exists()), "") for folder in self.folders]
        self.assertEqual(have, ["safetensors", "error", "safetensors", "error", "safetensors", "", ""])
        self.assertRegex((self.folders[1] / "values-float32.error").read_text(), "^the process ended with -6: ")
        self.assertEqual((self.folders[3] / "values-float32.error").read_text(), "an illegal address")
        self.assertGreater(self.bench.left, 4, "what is left for others")

    def test_without_a_gpu_the_part_is_not_run(self):
        self.write("#!/bin/sh\necho 'model_values: no CUDA device: none' >&2\nexit 69\n")
        with self.assertRaisesRegex(NotRun, "no CUDA device: none"):
            family_checks.compute(self.bench, self.folders, "float32", 6)


if __name__ == "__main__":
    unittest.main()
