"""All checks. Alone in importing the modules that declare them, so that these may import what they share."""

import checks
import copy_checks
import device_checks
import family_checks
import lifetime_checks
import machine_checks
import sanitizer_checks
import speed_checks
import training_checks
from parts import PARTS

# Within a part, the checks of the first of these come first: what others rest on, then what takes long.
MODULES = (machine_checks, device_checks, family_checks, sanitizer_checks, copy_checks, speed_checks, training_checks, lifetime_checks)


def load_all() -> list[checks.Check]:
    """In the order of the parts; in a part in that of the modules and of their lines, whichever was imported first."""
    parts, modules = list(PARTS), [module.__name__ for module in MODULES]
    return sorted(checks.CHECKS, key=lambda each: (parts.index(each.part), modules.index(each.function.__module__)))
