#!/usr/bin/env python3
"""Writes tests/optimizer/adamw_golden.h: a few steps of torch.optim.AdamW in fp32, for the optimizer's tests.

    .venv/bin/python tools/make_adamw_golden.py > tests/optimizer/adamw_golden.h
"""
import torch

NUM_ELEMENTS = 20
NUM_STEPS = 5
CASES = [  # name, settings
    ("plain", dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)),
    ("weight decay", dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
    ("low beta1, large epsilon", dict(lr=3e-4, betas=(0.3, 0.99), eps=1e-3, weight_decay=0.01)),
]


def numbers(tensor):
    rows = [", ".join(float(x).hex() + "F" for x in row) for row in tensor.reshape(-1, 4)]
    return "{" + ",\n     ".join(rows) + "}"


def main():
    torch.manual_seed(0)
    start = torch.randn(NUM_ELEMENTS)
    # Values that bf16 holds exactly, over many magnitudes, zero among them.
    gradients = torch.randn(NUM_STEPS, NUM_ELEMENTS) * torch.logspace(-6, 2, NUM_ELEMENTS)
    gradients[:, 3] = 0.0
    gradients = gradients.bfloat16().float()

    print("// Made by tools/make_adamw_golden.py with torch", torch.__version__.split("+")[0] + ": do not edit.")
    print("#pragma once\n\nnamespace rp::adamw_golden {\n")
    print(f"inline constexpr int kNumElements = {NUM_ELEMENTS};\ninline constexpr int kNumSteps = {NUM_STEPS};\n")
    print(f"inline constexpr float kStart[kNumElements] =\n    {numbers(start)};\n")
    print("inline constexpr float kGradients[kNumSteps * kNumElements] =")
    print(f"    {numbers(gradients)};\n")
    print("struct Case {\n  const char* name;\n  double learning_rate, beta1, beta2, epsilon, weight_decay;")
    print("  float p[kNumElements], m[kNumElements], v[kNumElements];  // after kNumSteps steps\n};\n")
    print("inline constexpr Case kCases[] = {")
    for name, settings in CASES:
        parameter = torch.nn.Parameter(start.clone())
        optimizer = torch.optim.AdamW([parameter], foreach=False, fused=False, **settings)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        state = optimizer.state[parameter]
        beta1, beta2 = settings["betas"]
        print(f'    {{"{name}", {settings["lr"]}, {beta1}, {beta2}, {settings["eps"]}, {settings["weight_decay"]},')
        print(f"     {numbers(parameter.detach())},\n     {numbers(state['exp_avg'])},\n     "
              f"{numbers(state['exp_avg_sq'])}}},")
    print("};\n\n}  // namespace rp::adamw_golden")


if __name__ == "__main__":
    main()
