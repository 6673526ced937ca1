"""Plays random runs of the protocol: see README.md."""
import argparse
import sys
from collections import Counter

from mistakes import MISTAKES
from run import GOOD_ENDS, play


def play_many(arguments):
    outcomes = Counter()
    totals = Counter()
    for index in range(arguments.runs):
        config, outcome, counts = play(arguments.seed, index)
        outcomes[outcome] += 1
        totals.update(counts)
        if outcome not in GOOD_ENDS:
            print(f'VIOLATION: {outcome}: repeat --seed {arguments.seed} --index {index}\n  {config}')
    numbers = ', '.join(f'{count} {name}' for name, count in sorted(totals.items()))
    print(f'{arguments.runs} runs of seed {arguments.seed}: {dict(outcomes)}; {numbers}')
    return 0 if set(outcomes) <= set(GOOD_ENDS) else 1


def repeat(arguments):
    config, outcome, counts = play(arguments.seed, arguments.index, arguments.mistake, trace=True)
    print(f'{config}\n{dict(counts)}\n{outcome}')
    return 0 if outcome in GOOD_ENDS else 1


def play_mistakes(arguments):
    """Plays each mistake until it is caught as expected."""
    missed = 0
    for name, mistake in MISTAKES.items():
        if arguments.name not in (None, name):
            continue
        caught = Counter()
        tried = 0
        for index in (mistake.first, *range(arguments.runs)):
            tried += 1
            outcome = play(arguments.seed, index, name)[1]
            if outcome not in GOOD_ENDS:
                caught[outcome] += 1
                if arguments.until_caught and outcome == mistake.caught_by:
                    break
        verdict = ', '.join(f'{outcome} {count}' for outcome, count in caught.most_common())
        is_missed = mistake.caught_by not in caught
        verdict = (verdict or 'never caught') + (f' (MISSED: {mistake.caught_by})' if is_missed else '')
        print(f'{name:30} {mistake.description:80} {tried:5} runs  {verdict}', flush=True)
        missed += is_missed
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for function, name in ((play_many, 'run'), (repeat, 'repeat'), (play_mistakes, 'mistakes')):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument('--seed', type=int, default=7)
        if function is repeat:
            command.add_argument('--index', type=int, required=True)
            command.add_argument('--mistake', choices=MISTAKES)
        else:
            command.add_argument('--runs', type=int, default=500)
        if function is play_mistakes:
            command.add_argument('--name', choices=MISTAKES)
            command.add_argument('--until-caught', action='store_true', help='stop at the first run that catches it')
    arguments = parser.parse_args()
    sys.exit(arguments.function(arguments))


if __name__ == '__main__':
    main()
