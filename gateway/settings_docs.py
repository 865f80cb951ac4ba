"""Writes docs/configuration.md from the table of settings: `python -m gateway.settings_docs FILE`, or `make docs`."""

import sys
from itertools import groupby
from pathlib import Path

from gateway.cli_options import default_words
from gateway.settings import TABLE, Setting

_HEAD = """# Configuration

Every setting of `lora-gateway serve` can be given in three ways. A flag wins over an environment variable, a variable
over the file, the file over the default.

| | name | example |
| --- | --- | --- |
| flag | as below | `--scan-interval 5` |
| environment variable | `LORA_GATEWAY_` and the flag in capitals with underscores | `LORA_GATEWAY_SCAN_INTERVAL=5` |
| key of the YAML file | the flag without the two dashes | `scan-interval: 5` |

- The file is named by `--config FILE` or `LORA_GATEWAY_CONFIG`. In it `scan_interval` is the same key as
  `scan-interval`; a key that stands twice is an error.
- A wrong value, an unknown key and an unknown `LORA_GATEWAY_` variable end the start with exit code 2 and one line that
  names the setting, where the value came from and what is allowed. `LORA_GATEWAY_URL`,
  `LORA_GATEWAY_CACHE` and `LORA_GATEWAY_VLLM_...` belong to other commands, and the variables that Kubernetes makes for
  a Service called `lora-gateway` are left alone (`LORA_GATEWAY_PORT=tcp://...`, `LORA_GATEWAY_SERVICE_HOST`, ...).
- An empty variable and a key without a value count as not set.
- `--replica` may be given several times; in a variable the URLs are separated by commas or spaces, in the file they are
  a list.
- A switch is `--allow-pickle` or `--no-allow-pickle`; in a variable or the file `true` or `false`.
- Times are seconds and take fractions. `--max-body-bytes` also takes `64MiB`.
- A key (`--replica-api-key`, `--admin-api-key`) may be `@FILE`: then it is read from that file and does not show in the
  list of processes.
- Relative paths start at the working directory, those in the file at the folder where the file lies. `~` is your home.

```yaml
# lora-gateway serve --config gateway.yaml
adapter-dir: /mnt/loras
replica:
  - http://gpu-1:8000
  - http://gpu-2:8000
replica-api-key: "@/run/secrets/vllm-key"
max-lora-rank: 64
preload: 20
```

This page is written from the source by `make docs`.
"""


def markdown() -> str:
    parts = [_HEAD]
    for section, rows in groupby(TABLE, key=lambda row: row.section):
        parts.append(f"\n## {section}\n\n| flag | default | allowed | meaning |\n| --- | --- | --- | --- |\n")
        parts += [_row(row) for row in rows]
    return "".join(parts)


def _row(row: Setting) -> str:
    flag = f"{row.flag} {row.kind.metavar}".strip()
    default = "required" if row.required else default_words(row)
    meaning = f"{row.help} **{row.limit.capitalize()}.**" if row.limit else row.help
    return "| " + " | ".join(_cell(text) for text in (f"`{flag}`", default, row.kind.allowed, meaning)) + " |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown(), encoding="utf-8")
