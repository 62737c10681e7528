"""The audit: what leaks, how fast, and what each defence buys.

The package is also the function ``relumine.audit(model, data)``: what is imported as one can be called as the other.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *model_and_data: Any, **options: Any) -> Any:
        from relumine.auditing import audit

        return audit(*model_and_data, **options)


sys.modules[__name__].__class__ = _Callable
