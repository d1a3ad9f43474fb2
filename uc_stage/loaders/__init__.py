"""How training code reads a copy: one module a library, each imported only when it is asked for."""
