"""See the package."""


def rotary_embedding(*_: object, **__: object) -> None:
    raise NotImplementedError("a stand-in, imported and never called")
