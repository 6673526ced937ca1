#!/usr/bin/env bash
# Goes from a fresh clone to a fine-tuned model: installs what is needed, builds, fetches a sample model and a sample text,
# trains on 2 CPU workers, and asks the model the same question before and after. All files are written to run/quickstart.
# Can be run again: existing files are reused, and the training starts again.
set -euo pipefail
cd "$(dirname "$0")/.."

place=run/quickstart
question="What is a bogon?"
steps=72
logs=$place/logs
phase=0
phases=6
mkdir -p "$logs"

# phase TITLE LOG command...: runs the command quietly and prints how long it took; on failure
# prints the end of its output.
phase() {
  local title=$1 log=$logs/$2.log start=$SECONDS code=0
  shift 2
  phase=$((phase + 1))
  printf '[%d/%d] %-58s' "$phase" "$phases" "$title"
  "$@" >"$log" 2>&1 || code=$?
  if ((code)); then
    printf 'failed\n\n' >&2
    tail -n 25 "$log" >&2
    printf '\nquickstart.sh: "%s" failed with exit code %d; all of its output is in %s\n' "$title" "$code" "$log" >&2
    exit "$code"
  fi
  printf '%4d s\n' $((SECONDS - start))
}

prepare_data() {
  .venv/bin/python tools/jargon_chat.py --output "$place/jargon.jsonl"
  .venv/bin/python tools/prepare_data.py --tokenizer "$place/model" --input "$place/jargon.jsonl" \
    --output "$place/jargon.tokens"
}

show_answer() { fold -s -w 100 "$1" | sed 's/^/    /'; }

echo "RoundPipe quickstart: about a quarter of an hour on 2 cores the first time. Logs: $logs"
phase "set-up: packages, PyTorch as LibTorch (scripts/setup.sh)" setup scripts/setup.sh
phase "build of all programs, without tests" build scripts/build.sh release --no-tests programs
phase "sample model: SmolLM2-135M-Instruct in bf16" model \
  .venv/bin/python tools/fetch_sample_model.py --output "$place/model"
phase "sample data: the Jargon File as questions and answers" data prepare_data
phase "question to the model before the training" before \
  .venv/bin/python tools/ask.py --model "$place/model" --question "$question"

rm -rf "$place/output"
phase=$((phase + 1))
echo "[$phase/$phases] fine-tuning for $steps steps on 2 workers; Ctrl-C ends it with a checkpoint"
start=$SECONDS
train=(build/release/bin/rp-launch --workers 2 train --model "$place/model" --data "$place/jargon.tokens"
  --output "$place/output" --max-steps "$steps" --batch-size 2 --num-microbatches 1 --rounds-per-step 2 --sequence-length 512
  --learning-rate 2e-4 --eval-share 0.02 --eval-every "$steps")
echo "    ${train[*]}"
code=0
"${train[@]}" || code=$?
if ((code)); then
  echo "quickstart.sh: the training ended with exit code $code (docs/exit-codes.md)" >&2
  exit "$code"
fi
echo "    took $((SECONDS - start)) s"

.venv/bin/python tools/ask.py --model "$place/output/final" --question "$question" >"$logs/after.log" 2>&1 || {
  cat "$logs/after.log" >&2
  echo "quickstart.sh: the trained model in $place/output/final could not be asked" >&2
  exit 1
}
echo
echo "$question"
echo "  before:"
show_answer "$logs/before.log"
echo "  after:"
show_answer "$logs/after.log"
echo
.venv/bin/python - "$place/output/evaluations.jsonl" <<'PYTHON'
import json
import sys

losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
fall = 1 - losses[-1] / losses[0]
print(f"loss on entries that were held out: {losses[0]:.3f} before, {losses[-1]:.3f} after, {100 * fall:.1f} % lower")
if not fall >= 0.15:
    sys.exit("quickstart.sh: expected at least 15 %: the training did not do its work")
PYTHON
echo "All in all $SECONDS s. The trained model is in $place/output/final, its metrics in $place/output/metrics.jsonl."
echo "Next: your own data, see README.md."
