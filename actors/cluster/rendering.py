"""Files that start the hosts of a topology on a cluster, made from the templates beside this module.

``templates/slurm.sh``: one supervisor on each node, addresses resolved in the job, continued after a requeue. Slurm
signals the batch shell alone, and the shell signals the main host's supervisor, which stops the run in order.
``templates/kubernetes.yaml``: one Job for each host, found by its name under a headless service.

Values reach a script only through ``quoted`` (of a shell or of YAML), or after a check of their characters.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jinja2

from actors.cluster.plan import STOPPED, HostNeeds
from agent_rl.config.source import Fault, Source

SLURM = "slurm.sh"
KUBERNETES = "kubernetes.yaml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names of hosts that a shell script can hold in a list."""
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
LONGEST_LABEL = 63
"""Characters of a name in DNS."""


def rendered(template: str, hosts: Sequence[HostNeeds], **values: Any) -> str:
    """The text of a template. ``hosts`` are the hosts in use, the main host first."""
    of_shell = template == SLURM
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",  # `${#nodes[@]}` of bash is no comment
        comment_end_string="#>",
        autoescape=False,  # noqa: S701 - the text is no HTML
    )
    quoted: Callable[[Any], str] = (lambda value: shlex.quote(str(value))) if of_shell else _json
    one_line = lambda value: " ".join(str(value).split())  # noqa: E731 - ends no comment
    environment.filters |= {"quoted": quoted, "block": _block, "one_line": one_line}
    return environment.get_template(template).render(hosts=hosts, stopped=STOPPED, **values)


def _json(value: Any) -> str:
    """A value in YAML, of which JSON with escapes of YAML is a part."""
    return re.sub(r"[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", json.dumps(value, ensure_ascii=False))


def _block(text: str, indent: int) -> str:
    """A text of several lines in YAML, as it is where YAML can hold it so."""
    if not text.endswith("\n") or re.search(r"[^\n\t -~\xa0-\u2027\u202a-\ud7ff]", text):
        return _json(text)
    return f"|2+\n{textwrap.indent(text, ' ' * indent, lambda _: True)}".removesuffix("\n")


def slurm_faults(hosts: Sequence[HostNeeds], source: Source) -> list[Fault]:
    """A fault for each host whose name the script cannot hold."""
    return [
        source.fault(("hosts", host.name), "this name cannot stand in a batch script", "write letters, digits, _ . -")
        for host in hosts
        if not NAME.fullmatch(host.name)
    ]


def kubernetes_faults(hosts: Sequence[HostNeeds], run_name: str, source: Source) -> list[Fault]:
    """A fault for each name that DNS cannot hold. ``run_name`` is the name that the manifests are to have."""
    remedy = "write small letters, digits and -, with a letter or digit at both ends"
    faults = [
        source.fault(("hosts", host.name), "this name cannot be the name of a pod", remedy)
        for host in hosts
        if not LABEL.fullmatch(host.name)
    ]
    if not LABEL.fullmatch(run_name):
        faults.append(
            source.fault(("run", "name"), f"{run_name!r} cannot be the name of a service", f"{remedy}, as --name")
        )
    elif longest := max((f"{run_name}-{host.name}" for host in hosts), key=len)[LONGEST_LABEL:]:
        message = (
            f"with the name of a host it has {LONGEST_LABEL + len(longest)} characters, and a Job's has {LONGEST_LABEL}"
        )
        faults.append(source.fault(("run", "name"), message, "give a shorter one as --name"))
    return faults


def secret_faults(secrets: Collection[str], source: Source) -> list[Fault]:
    """A fault for each key of a secret, which whoever may look at the cluster's manifests would read."""
    remedy = 'write "env:NAME", and give the containers that variable from a secret of the cluster'
    paths = [tuple(int(part) if part.isdigit() else part for part in key.split(".")) for key in secrets]
    return [source.fault(path, "this secret would stand in a ConfigMap", remedy) for path in paths]
