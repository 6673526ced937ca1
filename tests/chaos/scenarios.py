"""Defines the runs that are disturbed, and the required result of each: the same bits, at once or when it is run
again."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from disturbed_run import Outcome

PROGRAMS = Path(os.environ["RP_PROGRAMS"])  # the folder with rp-launch and train
TESTS = Path(os.environ.get("RP_TEST_PROGRAMS", PROGRAMS.parent / "tests"))  # toy_program, saving_program


class Scenario:
    """A command in its own directory, and the same command again, which must complete what a failure has left
    unfinished."""
    name = ""
    deadline_s = 60

    def prepare(self, work: Path):
        """Creates what all its runs need, in a directory that outlives them."""

    def set_up(self, directory: Path):
        """Creates the initial contents of the directory of one run."""

    def command(self, directory: Path) -> list[str]:
        raise NotImplementedError

    def again(self, directory: Path) -> list[str]:
        return self.command(directory)

    def bits(self, directory: Path) -> dict:
        """Returns the data that must equal that of an undisturbed run. Raises OSError if the run has not produced
        it."""
        raise NotImplementedError

    def half_written(self, directory: Path) -> list[str]:
        """Returns the names in the output directory that are not results."""
        output = directory / "output"
        return [path.name for path in output.iterdir() if path.name.startswith(".") or "unfinished" in path.name] if output.exists() else []

    def complaints(self, first: Outcome, directory: Path) -> list[str]:
        """Returns other problems of a run, however it ended."""
        return []

    def complaints_of_again(self, first: Outcome, second: Outcome, directory: Path) -> list[str]:
        """Returns the problems of a second run that ended successfully."""
        return []


class Toy(Scenario):
    """Starts and ends a run of rp-launch, a coordinator and two workers, without LibTorch."""
    name = "toy"
    deadline_s = 40

    def command(self, directory: Path) -> list[str]:
        return [str(PROGRAMS / "rp-launch"), "--workers", "2", str(TESTS / "toy_program"), "exit", "0"]

    def bits(self, directory: Path) -> dict:
        return {}


class Saving(Scenario):
    """Does the file operations of `train` without a model: a checkpoint that replaces an older one, metrics, a
    replaced file."""
    name = "saving"
    deadline_s = 20

    def command(self, directory: Path) -> list[str]:
        return [str(TESTS / "saving_program"), str(directory / "output")]

    def bits(self, directory: Path) -> dict:
        output = directory / "output"
        files = {str(path.relative_to(output)): path for path in sorted(output.rglob("*")) if path.is_file()}
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if not name.startswith(".")}


def make_one_layer_model(sample: Path, model: Path):
    """Creates the tests' tiny model with its first layer only, because each tensor adds a write that can fail."""
    shutil.copytree(sample, model)
    config = json.loads((sample / "config.json").read_text())
    config["num_hidden_layers"] = 1
    (model / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name != "layer_types"}))
    data = (sample / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header, tensors = {}, b""
    for name, tensor in json.loads(data[8:begin]).items():
        if name == "__metadata__" or ".layers." in name and ".layers.0." not in name:
            continue
        first, last = tensor["data_offsets"]
        header[name] = tensor | {"data_offsets": [len(tensors), len(tensors) + last - first]}
        tensors += data[begin + first:begin + last]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + tensors)
    (model / "model.safetensors").chmod(0o644)  # readable for runs of other users


class Train(Scenario):
    """A complete small run of `train`: start, two steps, a checkpoint after each, the trained model."""
    name = "train"

    def prepare(self, work: Path):
        self.model = work / "model"
        make_one_layer_model(Path(os.environ["RP_TINY_MODEL"]) / "model", self.model)

    def command(self, directory: Path) -> list[str]:
        data = Path(os.environ["RP_TINY_MODEL"]) / "data.tokens"
        return [str(PROGRAMS / "rp-launch"), "--workers", "1", "train", "--model", str(self.model), "--data", str(data),
                "--output", str(directory / "output"), "--max-steps", "2", "--batch-size", "4", "--num-microbatches", "2", "--sequence-length", "16",
                "--learning-rate", "1e-3", "--seed", "1", "--save-every", "1"]

    def again(self, directory: Path) -> list[str]:
        return [*self.command(directory), "--resume", "auto"]

    def bits(self, directory: Path) -> dict:
        output = directory / "output"
        losses = [line.split('"loss": ')[1].split(",")[0] for line in (output / "metrics.jsonl").read_text().splitlines()]
        return {"losses": losses, "final": (output / "final" / "SHA256SUMS").read_text()}

    def complaints_of_again(self, first: Outcome, second: Outcome, directory: Path) -> list[str]:
        found = ["a checkpoint was damaged"] if "damaged" in second.out else []
        saved = re.findall(r"checkpoint of step (\d+) written", first.out)
        resumed = re.findall(r"resumes from \S*checkpoint-(\d+)", second.out)
        if saved and "has ended" not in second.out and (not resumed or int(resumed[0]) < int(saved[-1])):
            found.append(f"the checkpoint of step {saved[-1]} was lost")
        return found


class Resume(Train):
    """A run of `train` that continues from the second of two checkpoints, for one further step."""
    name = "resume"

    def prepare(self, work: Path):
        super().prepare(work)
        self.interrupted = work / "interrupted" / "output"
        subprocess.run(super().command(self.interrupted.parent), check=True, capture_output=True)
        shutil.rmtree(self.interrupted / "final")

    def set_up(self, directory: Path):
        shutil.copytree(self.interrupted, directory / "output")

    def command(self, directory: Path) -> list[str]:
        words = super().command(directory)
        words[words.index("--max-steps") + 1] = "3"
        return [*words, "--resume", "auto"]

    def again(self, directory: Path) -> list[str]:
        return self.command(directory)

    def complaints(self, first: Outcome, directory: Path) -> list[str]:
        # A checkpoint that cannot be read may be set aside as damaged, but not if files cannot be
        # opened at all.
        call = first.failed_call()
        set_aside = [path.name for path in (directory / "output").iterdir() if path.name.startswith("damaged-")]
        return set_aside if set_aside and (call is None or call.fault in ("EMFILE", "EINTR")) else []


SCENARIOS = {scenario.name: scenario for scenario in (Toy(), Saving(), Train(), Resume())}


def empty(directory: Path):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
