# The service, on the CPU.
#   docker build -t curriculum-selector .
# It listens on all addresses of the container and so does not start without TLS and tokens: deploy/docker-compose.yml
# gives it both. To try it on one machine, where the port is published to that machine only:
#   docker run --read-only --tmpfs /tmp --cap-drop ALL -p 127.0.0.1:50051:50051 -v selector-state:/var/lib/selector \
#     curriculum-selector --insecure
# Nothing but /var/lib/selector and /tmp is written to, and /tmp holds nothing that has to last.
# The usual torch carries CUDA, several gigabytes; pass PyTorch's index of CPU builds to get the small one:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=<address> -t curriculum-selector .

FROM python:3.11-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python -m venv /opt/selector
# The dependencies first, in a layer that a change of the sources does not touch.
COPY pyproject.toml constraints-cpu.txt README.md LICENSE ./
COPY selector/__init__.py selector/
RUN /opt/selector/bin/pip install --no-cache-dir --constraint constraints-cpu.txt '.[server]'
COPY selector/ selector/
COPY clients/ clients/
COPY trainer_adapters/ trainer_adapters/
RUN rm -rf build && /opt/selector/bin/pip install --no-cache-dir --no-deps --force-reinstall .

FROM python:3.11-slim
# A number, so that orchestrators can see that it is not root.
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/selector --shell /usr/sbin/nologin selector \
    && install --directory --owner=10001 --group=10001 --mode=0750 /var/lib/selector
COPY --from=build /opt/selector /opt/selector
ENV PATH=/opt/selector/bin:$PATH \
    HF_HUB_OFFLINE=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/selector
VOLUME /var/lib/selector
EXPOSE 50051 9090
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["selector", "health", "--target", "127.0.0.1:50051"]
ENTRYPOINT ["selector", "serve", "--listen", "0.0.0.0:50051", "--metrics-listen", "0.0.0.0:9090", "--state-dir", "/var/lib/selector"]
