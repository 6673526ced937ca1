"""Lists all checks. This is the only module that imports the modules that declare checks, so these
can import what they share."""

import checks
import copy_checks
import device_checks
import family_checks
import lifetime_checks
import machine_checks
import replay_checks
import sanitizer_checks
import speed_checks
import training_checks
from parts import PARTS

# Within a part, checks run in the order of these modules: first what others depend on, last what
# takes long.
MODULES = (machine_checks, device_checks, family_checks, sanitizer_checks, copy_checks, speed_checks, training_checks, replay_checks, lifetime_checks)


def load_all() -> list[checks.Check]:
    """Returns the checks in the order of the parts; within a part, in the order of MODULES and then
    of declaration, whichever module was imported first."""
    parts, modules = list(PARTS), [module.__name__ for module in MODULES]
    return sorted(checks.CHECKS, key=lambda each: (parts.index(each.part), modules.index(each.function.__module__)))
