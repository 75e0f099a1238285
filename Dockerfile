# Images of the planner (target `planner`, no torch) and of what runs beside GPUs (target `agent`). docs/deploy.md describes them.
#
#     docker build --target planner --tag hydraulis-planner .
#
# BASE is any image with Python 3.11 or later and its venv module. Name it with its digest for an image that others depend on:
#     --build-arg BASE=docker.io/library/python:3.11-slim-bookworm@sha256:...
# pip takes its settings from secrets, which stay out of the images: --secret id=pip.conf,src=... and id=ca.crt,src=... (as
# /run/secrets/ca.crt, which pip.conf may name).
ARG BASE=docker.io/library/python:3.11-slim-bookworm


FROM ${BASE} AS wheel
# Times in the wheel come from here, so the same source gives the same bytes.
ARG SOURCE_DATE_EPOCH=1577836800
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /source
COPY constraints.txt ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    python3 -m venv /build \
    && /build/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip build hatchling
COPY pyproject.toml README.md LICENSE ./
COPY planner_service planner_service
COPY client client
COPY worker_agent worker_agent
RUN /build/bin/python -m build --wheel --no-isolation --outdir /dist


# Python and nothing to build with; set-user-ID bits are taken from whatever the base has.
FROM ${BASE} AS runtime
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/bin/pip* \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
    && echo 'hydraulis:x:65532:' >> /etc/group \
    && echo 'hydraulis:x:65532:65532::/var/lib/hydraulis:/usr/sbin/nologin' >> /etc/passwd \
    && install --directory --owner=65532 --group=65532 --mode=0750 /var/lib/hydraulis
ENV PATH=/opt/hydraulis/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
WORKDIR /var/lib/hydraulis
USER 65532:65532


FROM wheel AS planner-files
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    python3 -m venv --without-pip /opt/hydraulis \
    && /build/bin/python -m pip --python /opt/hydraulis/bin/python install --quiet --no-compile \
        --constraint constraints.txt "$(echo /dist/*.whl)[service,tracing]" \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/hydraulis/lib


FROM wheel AS agent-files
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    python3 -m venv --without-pip /opt/hydraulis \
    && /build/bin/python -m pip --python /opt/hydraulis/bin/python install --quiet --no-compile \
        --constraint constraints.txt "$(echo /dist/*.whl)[agent]" \
    && python3 -m compileall -q --invalidation-mode unchecked-hash -x torch/testing/_internal /opt/hydraulis/lib


# Its health check is for orchestrators to configure, since trainers run in it, too: `torchrun` is in PATH.
FROM runtime AS agent
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Hydraulis agent" \
      org.opencontainers.image.description="Runs plans of the Hydraulis planner on GPU nodes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=agent-files /opt/hydraulis /opt/hydraulis
COPY --chmod=0555 deploy/image/healthcheck.py /opt/hydraulis/bin/healthcheck
STOPSIGNAL SIGTERM
ENTRYPOINT ["hydraulis"]
CMD ["agent"]


# The last stage is what is built when no target is named.
FROM runtime AS planner
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Hydraulis planner" \
      org.opencontainers.image.description="Plans heterogeneous parallel strategies and sequence assignment" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=planner-files /opt/hydraulis /opt/hydraulis
COPY --chmod=0555 deploy/image/healthcheck.py /opt/hydraulis/bin/healthcheck
ENV HYDRAULIS_DATABASE=/var/lib/hydraulis/planner.sqlite3
VOLUME /var/lib/hydraulis
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["healthcheck"]
ENTRYPOINT ["hydraulis"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
