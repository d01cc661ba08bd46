# agent_rl on NVIDIA GPUs: `docker build -f containers/cuda.Dockerfile -t agent-rl .` from the root of the repository.
# NOT RUN: this image was never built, since no machine with Docker or a GPU was at hand.
FROM vllm/vllm-openai:v0.32.0

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /opt/agent_rl
COPY pyproject.toml setup.py README.md LICENSE ./
COPY actors actors
COPY agent_rl agent_rl
COPY benchmarks benchmarks
COPY examples examples
COPY tests/contract tests/contract
COPY transport transport
# torch and vLLM are those of the base: pip must not replace them.
RUN python3 -m pip freeze | grep -iE '^(torch|vllm|transformers)==' > /tmp/kept.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/kept.txt . \
    && rm /tmp/kept.txt \
    && agent-rl --version
RUN useradd --create-home --uid 10001 trainer
USER 10001
WORKDIR /work
ENTRYPOINT ["agent-rl"]
CMD ["doctor"]
