"""The lab for scheduling policies: opponents of the default, traces, a fast simulator and a lower bound."""
