"""Arrow in and out."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "documents": ["Documents"],
        "packing": ["pack_table"],
    },
)
