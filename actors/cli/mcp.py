"""``agent-rl mcp``: what the MCP servers of a topology list, in files for the topology."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actors.cli.output import Mistake, say
from actors.cli.parameters import Overlays, Overrides, TopologyFile
from agent_rl.config.examples import topology_file


def mcp(file: TopologyFile, /, *overlays: Overlays, overrides: Overrides = ()) -> None:
    """Start the servers, write the file of each, and end them."""
    import structlog
    import trio

    from actors.tool_executor.mcp_servers import McpServers
    from agent_rl.config.load import load_topology
    from agent_rl.config.source import TopologyError
    from agent_rl.environments.base import TaskError
    from agent_rl.environments.mcp import listing_path
    from agent_rl.files.disk import DiskError, whole

    files = (topology_file(str(file)), *overlays)
    base = files[0].parent.absolute()
    quiet = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])  # a server that ends is a mistake, below

    async def listings() -> dict[tuple[str, str], list[Mapping[str, Any]]] | TaskError:
        async with trio.open_nursery() as nursery:
            try:
                return await McpServers(topology, base, nursery, quiet).listings()
            except TaskError as error:
                return error
            finally:
                nursery.cancel_scope.cancel()

    try:
        topology = load_topology(files, overrides)
        if not any(entry.mcp for entry in topology.environments):
            raise Mistake(f"{files[0]}: no environment names a server; write one as [environments.mcp.NAME]")
        found = trio.run(listings)
        if isinstance(found, TaskError):
            raise Mistake(lines=[f"{files[0]}: {part}" for part in found.parts])
        entries = {entry.name: entry for entry in topology.environments}
        for (environment, name), listed in found.items():
            path = listing_path(entries[environment], name, base)
            with whole(path) as partial:
                partial.write_text(json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
            say(f"wrote {path}: {', '.join(each['name'] for each in listed) or 'no tools'}")
    except (TopologyError, DiskError) as error:
        raise Mistake(str(error)) from error
