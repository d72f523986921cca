"""x"""


def add_arguments(parser): ...
