"""The tool server: the sandbox over HTTP, by the protocols of tool services that other trainers ask."""
