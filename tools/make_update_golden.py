#!/usr/bin/env python3
"""Writes tests/optimizer/update_golden.h: a few steps of torch.optim's rules in fp32, for the optimizer's tests.

    .venv/bin/python tools/make_update_golden.py > tests/optimizer/update_golden.h
"""
import torch

NUM_ELEMENTS = 20
NUM_STEPS = 5
CASES = [  # name, rule, settings
    ("AdamW", "AdamW", dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)),
    ("AdamW with weight decay", "AdamW", dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
    ("AdamW with a low beta1 and a large epsilon", "AdamW", dict(lr=3e-4, betas=(0.3, 0.99), eps=1e-3, weight_decay=0.01)),
    ("Adam", "Adam", dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)),
    ("Adam with weight decay", "Adam", dict(lr=1e-2, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)),
    ("SGD", "SGD", dict(lr=1e-2, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False)),
    ("SGD with weight decay", "SGD", dict(lr=1e-2, momentum=0.0, dampening=0.0, weight_decay=0.1, nesterov=False)),
    ("SGD with momentum", "SGD", dict(lr=1e-2, momentum=0.9, dampening=0.0, weight_decay=0.01, nesterov=False)),
    ("SGD with dampening", "SGD", dict(lr=1e-2, momentum=0.9, dampening=0.3, weight_decay=0.0, nesterov=False)),
    ("SGD with Nesterov's momentum", "SGD", dict(lr=1e-2, momentum=0.9, dampening=0.0, weight_decay=0.1, nesterov=True)),
]
FIELDS = {"lr": "learning_rate", "eps": "epsilon"}


def numbers(tensor):
    rows = [", ".join(float(x).hex() + "F" for x in row) for row in tensor.reshape(-1, 4)]
    return "{" + ",\n     ".join(rows) + "}"


def rule_text(rule, settings):
    fields = []
    for name, value in settings.items():
        if name == "betas":
            fields += [f".beta1 = {value[0]}", f".beta2 = {value[1]}"]
        else:
            fields.append(f".{FIELDS.get(name, name)} = {str(value).lower()}")
    return f"{'Sgd' if rule == 'SGD' else rule}{{{', '.join(fields)}}}"


def main():
    torch.manual_seed(0)
    start = torch.randn(NUM_ELEMENTS)
    # Values that bf16 represents exactly, over many magnitudes, including zero.
    gradients = torch.randn(NUM_STEPS, NUM_ELEMENTS) * torch.logspace(-6, 2, NUM_ELEMENTS)
    gradients[:, 3] = 0.0
    gradients = gradients.bfloat16().float()

    print("// Made by tools/make_update_golden.py with torch", torch.__version__.split("+")[0] + ": do not edit.")
    print('#pragma once\n\n#include "roundpipe/optimizer.h"\n\nnamespace rp::update_golden {\n')
    print(f"inline constexpr int kNumElements = {NUM_ELEMENTS};\ninline constexpr int kNumSteps = {NUM_STEPS};\n")
    print(f"inline constexpr float kStart[kNumElements] =\n    {numbers(start)};\n")
    print("inline constexpr float kGradients[kNumSteps * kNumElements] =")
    print(f"    {numbers(gradients)};\n")
    print("struct Case {\n  const char* name;\n  UpdateRule rule;")
    print("  float p[kNumElements], m[kNumElements], v[kNumElements];  // after kNumSteps steps\n};\n")
    print("inline constexpr Case kCases[] = {")
    for name, rule, settings in CASES:
        parameter = torch.nn.Parameter(start.clone())
        optimizer = getattr(torch.optim, rule)([parameter], foreach=False, fused=False, **settings)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        state = optimizer.state[parameter]
        zeros = torch.zeros(NUM_ELEMENTS)
        m = state.get("exp_avg", state.get("momentum_buffer"))
        v = state.get("exp_avg_sq")
        print(f'    {{"{name}", {rule_text(rule, settings)},')
        print(f"     {numbers(parameter.detach())},\n     {numbers(zeros if m is None else m)},\n     "
              f"{numbers(zeros if v is None else v)}}},")
    print("};\n\n}  // namespace rp::update_golden")


if __name__ == "__main__":
    main()
