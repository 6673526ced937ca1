#!/usr/bin/env python3
"""The ends of runs of train: by signals, by bad input, by a full disk. Each has its exit code and one message, and
leaves nothing behind."""

import fcntl
import hashlib
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import termios
import threading
import time
import unittest
from pathlib import Path

from launched import ABORT, DEADLINE_S, SAMPLE, LaunchedTest, children, coordinator_of, make_model, metrics, settings, worker_of


class SignalTest(LaunchedTest):
    def start(self, launch=[], **changes):
        """Starts a run without an end, and waits for its first step."""
        process = subprocess.Popen(self.command(settings(self.output, **({"max_steps": 1000000} | changes)), ["--workers", "2", *launch]),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if line.startswith("step "):
                return process
        self.fail(process.stderr.read())

    def ended_by(self, signal_number: int, code: int, **changes):
        process = self.start(**changes)
        process.send_signal(signal_number)
        start = time.monotonic()
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, code, out[-1000:] + err)
        self.assertLess(time.monotonic() - start, 10)
        self.assert_nothing_left()
        self.assertEqual(out.count("stopped by " + signal_number.name), 1, out[-1000:])
        steps = metrics(self.output)[-1]["step"]
        self.assertEqual([p.name for p in self.output.iterdir() if p.is_dir()], [f"checkpoint-{steps}"])
        return steps

    def test_int_ends_with_130_and_a_checkpoint(self):
        self.ended_by(signal.SIGINT, 130)

    def test_term_ends_with_75_and_the_run_goes_on_from_there(self):
        steps = self.ended_by(signal.SIGTERM, 75)
        self.run_train(settings(self.output, max_steps=steps + 2, resume=self.output))
        self.assertEqual([m["step"] for m in metrics(self.output)], list(range(1, steps + 3)))

    def test_usr1_and_hup_end_with_75(self):
        self.ended_by(signal.SIGUSR1, 75)
        shutil.rmtree(self.output)
        self.ended_by(signal.SIGHUP, 75, **{"async": True, "rounds_per_step": 2})

    def test_the_first_signal_says_at_once_what_is_still_done(self):
        process = self.start()
        process.send_signal(signal.SIGINT)
        self.assertRegex(process.stderr.readline(), r"^train: finishing step \d+, then a checkpoint; Ctrl-C again ends at once\n$")
        _, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual((process.returncode, err), (130, ""))

    def test_a_run_that_fails_says_what_is_lost_and_what_to_go_on_from(self):
        for saved in (True, False):
            process = self.start(save_every=1 if saved else "never", max_steps=20000, launch=ABORT)
            os.kill(worker_of(process), signal.SIGKILL)
            _, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 137, err)
            newest = max([int(p.name.split("-")[1]) for p in self.output.glob("checkpoint-*")], default=None)
            self.assertEqual(newest is not None, saved)
            expected = rf"lost: go on from {self.output}/checkpoint-{newest} with --resume auto\n" if saved else "without a checkpoint: its steps are lost"
            self.assertRegex(err, r"(?m)^train: the run ends after step \d+.*" + expected)
            shutil.rmtree(self.output)

    def test_rp_launch_says_what_is_lost_where_the_coordinator_cannot(self):
        for saved in (True, False):
            process = self.start(save_every=1 if saved else "never", max_steps=20000, launch=ABORT)
            # Waits for the second checkpoint: the first may have its name before the run has
            # reported it.
            while saved and not any(p.name != "checkpoint-1" for p in self.output.glob("checkpoint-*")):
                time.sleep(0.01)
            os.kill(coordinator_of(process), signal.SIGKILL)
            _, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 137, err)
            lost = re.search(r"(?m)^  lost: +(.*)$", err)[1]
            if saved:
                step = int(re.match(r"the steps after checkpoint-(\d+); the same command with --resume auto goes on from there$", lost)[1])
                newest = max(int(p.name.split("-")[1]) for p in self.output.glob("checkpoint-*"))
                self.assertIn(step, (newest, newest - 1), "the newest may have its name, and nobody knows of it yet")
            else:
                self.assertEqual(lost, "all steps, since there is no checkpoint yet; --save-every says how often there is one")
            shutil.rmtree(self.output)

    def test_processes_have_names_by_their_roles(self):
        process = self.start()
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in children(process.pid)}
        self.assertEqual(names, {"train:coord", "train:worker0", "train:worker1", "rp-watchdog"})
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)

    def test_a_second_int_while_checkpoints_are_written_leaves_nothing_half_written(self):
        for repetition in range(8):
            process = self.start(save_every=1, max_steps=2000)
            time.sleep(0.02 * repetition)
            process.send_signal(signal.SIGINT)
            time.sleep(0.01 * (repetition % 3))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 130, out[-1000:] + err)
            self.assert_nothing_left()
            self.assertEqual([p.name for p in self.output.iterdir() if p.name.startswith(".")], [])
            shutil.rmtree(self.output)


class PauseTest(LaunchedTest):
    """Ctrl-Z: all processes of a run stop and continue together, and no wait times out because of that."""

    def processes(self):
        """Returns the state and command of each process of the run, except the watchdog of rp-launch, which goes on."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if str(self.directory) in words and (entry / "comm").read_text() != "rp-watchdog\n":
                    found.append(((entry / "stat").read_text().rsplit(") ", 1)[1][0], words.split("\0")))
            except OSError:
                continue
        return found

    def wait_until(self, condition):
        end = time.monotonic() + 20
        while not condition(self.processes()):
            self.assertLess(time.monotonic(), end, self.processes())
            time.sleep(0.02)

    def words(self):
        return self.command(settings(self.output, max_steps=250), ["--workers", "2", "--wait-timeout", "2"])

    def test_a_stop_signal(self):
        process = subprocess.Popen(self.words(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        while not next(process.stdout).startswith("step "):
            pass
        for _ in range(2):
            process.send_signal(signal.SIGTSTP)
            self.wait_until(lambda found: len(found) == 4 and all(state == "T" for state, _ in found))
            time.sleep(4)
            process.send_signal(signal.SIGCONT)
            self.wait_until(lambda found: all(state != "T" for state, _ in found))
            time.sleep(0.2)
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual((process.returncode, err), (0, ""))
        self.assert_nothing_left()

    def test_the_keyboard(self):
        """Runs under a shell with job control, which continues the run after 4 s."""
        leader, follower = pty.openpty()
        script = shlex.join(self.words()) + "; sleep 4; fg; exit $?"
        process = subprocess.Popen(["bash", "-mc", script], stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
                                   preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.addCleanup(process.kill)
        os.close(follower)
        shown = b""
        while b"\rstep" not in shown:
            shown += os.read(leader, 65536)
        reader = threading.Thread(target=self.read_all, args=(leader,))
        reader.start()
        os.write(leader, b"\x1a")
        run = lambda found: [state for state, words in found if words[0] != "bash"]
        self.wait_until(lambda found: run(found) == ["T"] * 4)
        self.wait_until(lambda found: "T" not in run(found))
        self.assertEqual(process.wait(timeout=DEADLINE_S), 0)
        reader.join()
        os.close(leader)
        self.assert_nothing_left()

    def test_the_key_does_nothing_where_no_shell_could_let_the_run_go_on(self):
        leader, follower = pty.openpty()
        process = subprocess.Popen(self.command(settings(self.output, max_steps=150), ["--workers", "2"]), stdin=follower, stdout=follower,
                                   stderr=follower, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.addCleanup(process.kill)
        os.close(follower)
        shown = b""
        while b"\rstep" not in shown:
            shown += os.read(leader, 65536)
        os.write(leader, b"\x1a")
        self.read_all(leader)
        self.assertEqual(process.wait(timeout=DEADLINE_S), 0)
        os.close(leader)

    @staticmethod
    def read_all(leader):
        try:
            while os.read(leader, 65536):
                pass
        except OSError:
            pass


class BadInputTest(LaunchedTest):
    def copy_of_model(self):
        model = self.directory / "model"
        shutil.copytree(SAMPLE / "model", model)
        return model

    def test_settings(self):
        self.refused(2, "--batch-size 2 is too small for --num-microbatches 3", batch_size=2)
        self.refused(2, "--batch-size 8 does not split evenly", rounds_per_step=3)
        self.refused(2, "--learnin-rate (did you mean --learning-rate?)", learnin_rate=1)
        self.refused(2, "missing: --data FILE", data=None)
        self.refused(2, "--sequence-length 4096 is beyond the 128 positions", sequence_length=4096)

    def test_activations_that_cannot_fit_are_refused_before_the_first_step(self):
        model = make_model(self.directory / "model", max_position_embeddings=8192, hidden_size=512, num_attention_heads=8)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (SAMPLE / "model" / name).exists():
                shutil.copy(SAMPLE / "model" / name, model)
        self.refused(69, "a round of 2000 sequences of 8192 tokens keeps at least", "of activations in host memory", "are free; give a round at most",
                     launch=("--workers", "2"), model=model, batch_size=2000, num_microbatches=2000, sequence_length=8192)

    def test_config_file(self):
        config = self.directory / "run.toml"
        config.write_text("save-evry = 2\n")
        self.refused(64, "run.toml:1: save-evry: no such setting (did you mean save-every?)", config=config)
        config.write_text("save-every = 2\nseed = 5\n")
        self.run_train(settings(self.output, seed=None, config=config))
        self.assertRegex((self.output / "train.log").read_text(), r"seed +5\n")
        self.assertTrue((self.output / "checkpoint-4").is_dir())

    def test_data(self):
        self.refused(64, "token ids up to 4999", "vocabulary is 300", data=SAMPLE / "other_tokenizer.tokens")
        self.refused(64, "nowhere.tokens", data=self.directory / "nowhere.tokens")
        broken = self.directory / "broken.tokens"
        broken.write_bytes((SAMPLE / "data.tokens").read_bytes()[:-7])
        self.refused(64, "broken.tokens", "truncated", data=broken)
        broken.write_bytes(b"")
        self.refused(64, "broken.tokens", data=broken)

    def test_model(self):
        self.refused(64, "nowhere", model=self.directory / "nowhere")
        model = self.copy_of_model()
        weights = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(weights[:-100])
        self.refused(64, "model.safetensors", model=model)
        (model / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + weights[8:])
        self.refused(64, "model.safetensors", model=model)
        (model / "model.safetensors").write_bytes(weights)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
        self.refused(64, "model.safetensors", model=model)

    def test_weights_that_are_no_numbers(self):
        import torch
        from safetensors.torch import load_file, save_file

        model = self.copy_of_model()
        tensors = load_file(model / "model.safetensors")
        name = "model.layers.3.mlp.up_proj.weight"
        tensors[name][2, 1:3] = torch.tensor([float("nan"), float("inf")])
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        self.refused(64, f"tensor {name}: 2 of its {tensors[name].numel()} values are NaN or infinite", model=model)

    def test_data_of_another_tokenizer(self):
        model = self.copy_of_model()
        raw = bytearray((SAMPLE / "data.tokens").read_bytes())
        raw[72:80] = hashlib.sha256((model / "tokenizer.json").read_bytes()).digest()[:8]
        data = self.directory / "data.tokens"
        data.write_bytes(raw)
        self.run_train(settings(self.directory / "right", model=model, data=data, max_steps=1))
        (model / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes() + b" ")
        self.refused(64, "data.tokens: was made with another tokenizer than that of", model=model, data=data)

    def test_problems_of_model_and_data_are_reported_together(self):
        self.refused(64, "2 problems", "no_model", "no.tokens", model=self.directory / "no_model", data=self.directory / "no.tokens")

    def test_output_that_is_not_ours(self):
        self.output.mkdir()
        (self.output / "letter.txt").write_text("dear")
        self.refused(2, "holds something else", untouched=False)
        self.assertEqual([p.name for p in self.output.iterdir()], ["letter.txt"])

    def test_output_of_another_run(self):
        self.run_train(settings(self.output, save_every=2))
        before = {p: p.stat().st_mtime_ns for p in self.output.rglob("*")}
        self.refused(2, "holds a run already; go on with --resume", untouched=False)
        self.refused(2, "has ended", untouched=False, resume=self.output, max_steps=8)
        shutil.rmtree(self.output / "final")
        before = {p: t for p, t in before.items() if p.exists()} | {self.output: self.output.stat().st_mtime_ns}
        self.refused(2, "--max-steps 3 is passed", untouched=False, resume=self.output, max_steps=3)
        self.refused(2, "--seed is 2, but", untouched=False, resume=self.output, seed=2, max_steps=8)
        self.refused(2, "has a checkpoint of step 4", untouched=False, resume=self.output / "checkpoint-2", max_steps=8)
        self.refused(64, "is no saved state", untouched=False, resume=self.directory, max_steps=8)
        (self.output / "checkpoint-4" / "state.safetensors").write_bytes(b"short")
        self.refused(64, "state.safetensors", untouched=False, resume=self.output, max_steps=8)
        del before[self.output / "checkpoint-4" / "state.safetensors"]
        self.assertEqual(before, {p: p.stat().st_mtime_ns for p in before})

    def test_two_runs_in_one_output(self):
        self.run_train(settings(self.output, save_every=2, max_steps=2))
        shutil.rmtree(self.output / "final")
        with open(self.output / "metrics.jsonl") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.refused(2, "another run is writing it", untouched=False, resume=self.output)


class OutputFailureTest(LaunchedTest):
    """Runs with a full disk: a small tmpfs in a mount namespace of the run."""

    def on_small_disk(self, kib: int, script: str, train: list[str]):
        disk = self.directory / "disk"
        disk.mkdir(exist_ok=True)
        command = ["unshare", "--mount", "bash", "-c",
                   f'mount -t tmpfs -o size={kib}k rp-test "$1" || exit 99; shift; "$@" & run=$!; {script}; wait $run; code=$?; '
                   f'ls -A {disk}/output 2>/dev/null; exit $code', "bash", str(disk), *self.command(train, ["--workers", "2"])]
        process = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        if process.returncode == 99 or "unshare" in process.stderr:
            self.skipTest("needs the right to mount: " + process.stderr)
        self.assert_nothing_left()
        return process

    def test_too_little_disk_before_the_start(self):
        for _ in range(5):
            process = self.on_small_disk(100, "true", settings(self.directory / "disk" / "output"))
            self.assertEqual(process.returncode, 69, process.stderr)
            self.assertIn("are free there", process.stderr)
            self.assertEqual(process.stdout, "", "nothing is left")

    def test_a_disk_that_fills_up_ends_with_74_and_leaves_nothing_half_written(self):
        fill = f'sleep 0.2; until grep -q step {self.directory}/disk/output/metrics.jsonl; do sleep 0.05; done; ' \
               f'head -c 10000000 /dev/zero > {self.directory}/disk/fill'
        for _ in range(5):
            process = self.on_small_disk(4096, fill, settings(self.directory / "disk" / "output", max_steps=60))
            self.assertEqual(process.returncode, 74, process.stderr)
            self.assertEqual(process.stderr.count("No space left"), 1 + process.stderr.count("head:"), process.stderr)
            left = [name for name in process.stdout.splitlines()[-4:] if not name.startswith("events.out.tfevents.")]
            self.assertEqual(left, ["metrics.csv", "metrics.jsonl", "train.log"])


class StandardOutputTest(LaunchedTest):
    def run_into(self, sink: str):
        """Returns the exit code and the stderr of a run whose stdout is a pipe to a command or a file."""
        words = " ".join(self.command(settings(self.output, max_steps=30), ["--workers", "2"]))
        process = subprocess.run(["bash", "-c", f"{words} {sink}; exit ${{PIPESTATUS[0]}}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 text=True, timeout=DEADLINE_S)
        self.assert_nothing_left()
        self.assertEqual(len(metrics(self.output)), 30)
        self.assertTrue((self.output / "final" / "model.safetensors").is_file())
        return process

    def test_a_reader_that_goes_away_ends_nothing(self):
        for sink in ("| head -n 1", "| (exec <&-; sleep 3)", "| (sleep 0.3; exec <&-; sleep 3)", ">&-"):
            with self.subTest(sink):
                shutil.rmtree(self.output, ignore_errors=True)
                process = self.run_into(sink)
                self.assertEqual(process.returncode, 0, process.stderr)
                told = 0 if sink == ">&-" else 1
                self.assertEqual(process.stderr.count("train: stdout has no reader any more"), told, process.stderr)
                self.assertEqual((self.output / "train.log").read_text().count("train: stdout has no reader any more"), told)

    def test_a_reader_that_does_not_read_cannot_hold_a_run(self):
        for number, code in ((signal.SIGTERM, 75), (signal.SIGINT, 130)):
            with self.subTest(number):
                read_end, write_end = os.pipe()
                fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 8192)  # two pages: it is full when the second one is begun, after some 30 steps
                process = subprocess.Popen(self.command(settings(self.output, max_steps=1000000), ["--workers", "2"]), stdout=write_end,
                                           stderr=subprocess.PIPE, text=True)
                self.addCleanup(process.kill)
                writable = select.poll()
                writable.register(write_end, select.POLLOUT)
                steps, previous = 0, -1
                while writable.poll(0) or steps == 0 or steps != previous:  # until the run waits for its reader
                    self.assertIsNone(process.poll(), "the run has ended")
                    time.sleep(0.5)
                    previous, steps = steps, len(metrics(self.output)) if (self.output / "metrics.jsonl").exists() else 0
                process.send_signal(number)
                start = time.monotonic()
                err = process.communicate(timeout=DEADLINE_S)[1]
                self.assertEqual(process.returncode, code, err)
                self.assertLess(time.monotonic() - start, 10)
                os.close(read_end)
                os.close(write_end)
                self.assert_nothing_left()
                self.assertEqual(len(list(self.output.glob("checkpoint-*"))), 1, "the checkpoint is written")
                shutil.rmtree(self.output)

    def test_a_pipe_in_the_place_of_a_log_is_refused(self):
        logs = self.directory / "logs"
        logs.mkdir()
        os.mkfifo(logs / "worker-1.err")
        launch = ("--workers", "2", "--log-dir", str(logs))
        err = self.run_train(settings(self.output), launch, 74).stderr
        self.assertEqual(err, f"rp-launch: {logs}/worker-1.err: cannot be opened for writing: it is not a regular file; choose another --log-dir\n")
        os.unlink(logs / "worker-1.err")
        target = self.directory / "target"
        target.write_text("theirs")
        (logs / "worker-1.err").symlink_to(target)
        self.assertIn("worker-1.err: cannot be opened for writing: it is a link", self.run_train(settings(self.output), launch, 74).stderr)
        self.assertEqual(target.read_text(), "theirs")

    def test_a_full_disk_below_stdout_is_74_at_the_end(self):
        process = self.run_into("> /dev/full")
        self.assertEqual(process.returncode, 74, process.stderr)
        self.assertEqual(process.stderr.count("train: stdout cannot be written (No space left on device); the run goes on"), 1, process.stderr)
        self.assertEqual(process.stderr.count("error: stdout could not be written"), 1, process.stderr)


class TerminalTest(LaunchedTest):
    def test_a_terminal_gets_a_bar_that_is_removed_and_no_lines(self):
        leader, follower = pty.openpty()
        environment = {**os.environ, "TERM": "xterm"}
        process = subprocess.Popen(self.command(settings(self.output, max_steps=10, log_every=5), ["--workers", "2"]), stdin=follower,
                                   stdout=follower, stderr=follower, env=environment)
        os.close(follower)
        shown = b""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if not select.select([leader], [], [], 1)[0]:
                continue
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        os.close(leader)
        self.assertEqual(process.wait(timeout=DEADLINE_S), 0)
        text = shown.decode()
        self.assertIn("\rstep 10/10", text)
        self.assertIn("[########################]", text)
        self.assertEqual(re.findall(r"(?:\n|\x1b\[K)step +(\d+)/10  loss [^\r\n]*\r\n", text), ["1", "5", "10"], "lines that stay")
        # The final contents of the terminal: after the last removal of the bar, only the closing
        # lines.
        closing = re.sub(r"\r\n +", " ", text.rsplit("\r\x1b[K", 1)[1])  # joins lines that were broken
        self.assertRegex(closing,
                         r"^host memory: planned [^\r\n]*\r\nworker memory: at most [^\r\n]*\r\nstep: [^\r\n]*\r\ncheckpoint of step 10 [^\r\n]*\r\n"
                         r"loss [^\r\n]* at step 1, [^\r\n]* at step 10, lowest [^\r\n]*\r\n[\d,]+ tokens, [^\r\n]* padding, in 10 steps [^\r\n]*\r\n"
                         r"trained 10 steps in [^\r\n]*\r\n$")
        shown_lines = re.sub(r"\r[^\r\n]*\x1b\[K", "", text).splitlines()
        self.assertLessEqual(max(len(line) for line in shown_lines if str(self.directory) not in line), 80)

    def test_elsewhere_there_is_a_line_a_step_and_no_control_character(self):
        process = self.run_train(settings(self.output))
        lines = [line for line in process.stdout.splitlines() if line.startswith("step ")]
        self.assertEqual(len(lines), 4)
        self.assertRegex(lines[2], r"^step 3/4  loss \d\.\d{4}  grad norm \d+\.\d{3}  lr 1\.00e-03  \d+ tokens/s  busy \d+ %  host .*iB  eta 0:00:0\d$")
        self.assertNotIn("\x1b", process.stdout + process.stderr)
        self.assertEqual(process.stderr, "")


if __name__ == "__main__":
    unittest.main()
