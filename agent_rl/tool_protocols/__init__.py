"""The protocols of tool services that other trainers ask: bodies of HTTP requests in, programs to run, bodies out."""
