# The gateway. Build it from the project's root: docker build -f deploy/gateway.Dockerfile -t lora-gateway .
# PIP_INDEX_URL and PIP_EXTRA_INDEX_URL may be given as build arguments where packages come from a mirror.
FROM python:3.11-slim AS build
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python3 -m venv /opt/gateway
COPY pyproject.toml constraints.txt README.md ./
COPY gateway gateway
COPY replica replica
RUN /opt/gateway/bin/python -m pip install -c constraints.txt ".[otel]"

FROM python:3.11-slim
COPY --from=build /opt/gateway /opt/gateway
# a volume that is mounted here first takes over this owner
RUN mkdir -p /data/adapters && chown -R 10001:10001 /data
ENV PATH=/opt/gateway/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["lora-gateway"]
CMD ["serve", "--help"]
