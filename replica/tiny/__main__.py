"""`python -m replica.tiny DIR`: a tiny model in DIR/model and a few adapters in DIR/adapters."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from replica.tiny.adapter import make_adapter
from replica.tiny.model import make_model

ADAPTERS = {"sql": "SQL;", "poet": "rhyme", "legal": "clause", "french": "merci"}

DESCRIPTION = """\
Make a tiny real Llama and tiny real PEFT adapters that vLLM can serve, without a download, in about a second.
DIR/model is the model, DIR/adapters/NAME an adapter. Each adapter answers with its own text, over and over, whatever
it is asked, so an answer shows which adapter gave it. The same arguments give the same bytes."""

EPILOG = f"""\
adapters made without --adapter: {", ".join(f"{name} says {text}" for name, text in ADAPTERS.items())}

examples:
  python -m replica.tiny demo                          the model and the four adapters above
  python -m replica.tiny demo --adapter sql=UPDATE!    a new revision of sql (the files are replaced, each in one step)
  python -m replica.tiny demo --adapter team/x=words   one more adapter
  python -m replica.tiny demo --adapter big=abcdefghijklmnop --rank 16
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    model = options.dir / "model"
    if not (model / "model.safetensors").is_file():
        print(f"{make_model(model)}: the model", file=sys.stderr)
    for name, text in (dict(options.adapter) or ADAPTERS).items():
        try:
            folder = make_adapter(
                model, options.dir / "adapters" / name, say=text, rank=options.rank, base_model=options.base_model
            )
        except ValueError as error:
            print(f"replica.tiny: {error}", file=sys.stderr)
            return 2
        print(f"{folder}: says {text}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m replica.tiny",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="made if it is not there; an existing model is kept")
    parser.add_argument(
        "--adapter",
        type=_name_and_text,
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="make (or replace) only this adapter; TEXT is distinct printable characters, at most RANK; repeatable",
    )
    parser.add_argument("--rank", type=int, default=8, help="rank of the adapters (default 8)")
    parser.add_argument(
        "--base-model", default="tiny", metavar="NAME", help="base_model_name_or_path of the adapters (default tiny)"
    )
    return parser


def _name_and_text(argument: str) -> tuple[str, str]:
    name, separator, text = argument.partition("=")
    if not separator or not name or not text:
        raise argparse.ArgumentTypeError("expected NAME=TEXT")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise argparse.ArgumentTypeError("NAME must be a relative path without ..")
    return name, text


if __name__ == "__main__":
    sys.exit(main())
