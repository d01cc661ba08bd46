"""The RL domain of agent_rl: synchronous and pure wherever it decides something; no sockets but in `conformance`."""
