"""Checks how host memory is registered, and how fast it is copied. The programs use the driver only."""

from bench import Bench
from checks import A_FIGURE, Outcome, check
from printed import Printed, printed

RATIO = 0.95
BANDWIDTHS = {"up": "uploads", "down": "downloads", "both_up": "uploads, downloads at the same time",
              "both_down": "downloads, uploads at the same time"}


def ratio_text(line: dict) -> str:
    return f"{line['ratio']:.3f} ({line['store_gbs']:.1f} of {line['pinned_gbs']:.1f} GB/s, {line['store']})"


def staged_text(line: dict) -> str:
    return f"{line['staged_gbs']:.1f} GB/s, {line['staged_gbs'] / line['pinned_gbs']:.3f} of pinned memory's"


@check("bandwidth", *((f"{what} over the registered store, of plain pinned memory's bandwidth", f">= {RATIO}") for what in BANDWIDTHS.values()),
       ("uploads over unregistered memory, through the pinned buffer", A_FIGURE),
       ("downloads over unregistered memory, through the pinned buffer", A_FIGURE))
def store_bandwidth(bench: Bench) -> list[Outcome]:
    found = printed(bench.run([bench.program("gpu_store_bandwidth")], 60), "what")
    outcomes = [found.outcome(key, ratio_text, lambda line: line["ratio"] >= RATIO) for key in BANDWIDTHS]
    return outcomes + [found.outcome(key, staged_text) for key in ("up", "down")]


PROCESSES = (1, 2, 4, 8)


def registration_text(line: dict) -> str:
    return f"{line['s_per_gib']:.3f} s a GiB; {line['failed_attempts']} attempts failed, {line['given_up']} pieces were given up"


def busy_text(line: dict) -> str:
    kinds = ("launch", "copy", "mmap")
    return ", ".join(f"{kind} {line['busy'][kind + '_ms']:.2f} ms (before {line['idle'][kind + '_ms']:.2f})" for kind in kinds)


@check("registration", *((f"registering a store of 4 GiB in pieces of 256 MiB by {count} process{'es at once' if count > 1 else ''}", "no piece is given up")
                         for count in PROCESSES),
       *((f"the longest launch, copy and `mmap` in a process while {count} register{'s' if count == 1 else ''}", A_FIGURE) for count in PROCESSES))
def registration(bench: Bench) -> list[Outcome]:
    found = printed(bench.run([bench.program("gpu_registration")], 55), "processes")
    registered = [found.outcome(count, registration_text, lambda line: line["given_up"] == 0) for count in PROCESSES]
    return registered + [found.outcome(count, busy_text) for count in PROCESSES]


DIRECTIONS = {"up": "to the GPU", "down": "from it", "both": "both ways at once, each"}
NOW = (4, 2)  # MiB and pieces under way that workers used originally, for comparison with the best


def best_text(lines: list[dict], uncut: dict) -> str:
    """Describes a grid: its best size, the cheapest size within 1 % of the best, and the size that
    workers used originally."""
    def size(line: dict) -> str:
        return f"{line['mib']} MiB x {line['under_way']}"

    best = max(lines, key=lambda line: line["gbs"])
    enough = min((line for line in lines if line["gbs"] >= 0.99 * best["gbs"]), key=lambda line: (line["mib"] * line["under_way"], line["mib"]))
    began = next(line for line in lines if (line["mib"], line["under_way"]) == NOW)
    return (f"{best['gbs']:.1f} GB/s with {size(best)}, {best['gbs'] / uncut['gbs']:.3f} of uncut; {enough['gbs']:.1f} with {size(enough)}; "
            f"{began['gbs']:.1f} with {size(began)}")


def grid_outcome(found: Printed, direction: str, is_traced: bool) -> Outcome:
    its = [line for line in found.lines.values() if line["direction"] == direction]
    uncut = [line for line in its if not line["is_cut"]]
    grid = [line for line in its if line["is_cut"] and line["is_traced"] == is_traced]
    if len(grid) < 16 or not uncut:
        return Outcome(why=f"{len(grid)} of 16 sizes; {found.trouble}", has_failed=found.has_failed)
    return Outcome(best_text(grid, uncut[0]))


TRAFFICS = {"idle": "no other copies", "gives_way": "pieces of 4 MiB, 2 under way", "uncut": "uncut copies"}


def delay_text(line: dict) -> str:
    return (f"16 MiB: median {line['input_us']:.0f} us, at most {line['longest_input_us']:.0f} us; 4 KiB: median {line['page_us']:.0f} us, "
            f"at most {line['longest_page_us']:.0f} us")


@check("copies", *((f"an input of 16 MiB to the GPU and a page of 4 KiB from it, with {text}", A_FIGURE) for text in TRAFFICS.values()),
       *((f"copies in pieces of 2 to 16 MiB, 2 to 6 under way, {text}, {trace} trace: the best", A_FIGURE)
         for trace in ("without", "with") for text in DIRECTIONS.values()))
def bulk_copies(bench: Bench) -> list[Outcome]:
    result = bench.run([bench.program("gpu_bulk_copies")], 55)
    delays, grid = printed(result, "traffic"), printed(result, "direction", "is_cut", "is_traced", "mib", "under_way")
    bench.note_table(("direction", "is_traced", "is_cut", "mib", "under_way", "gbs"), grid.lines.values())
    return [delays.outcome(traffic, delay_text) for traffic in TRAFFICS] + [
        grid_outcome(grid, direction, is_traced) for is_traced in (False, True) for direction in DIRECTIONS]
