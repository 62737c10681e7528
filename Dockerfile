# relumine with the CPU build of torch, for a user without rights:
#   docker build -t relumine . && docker run --rm -v "$PWD:/audit" relumine audit model.onnx --data inputs.npz
FROM python:3.11-slim AS build
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN uv venv /opt/relumine \
    && uv pip install --no-cache --python /opt/relumine --torch-backend cpu --constraints constraints.txt \
        ".[onnx,serve,tables,trees]"

FROM python:3.11-slim
# LightGBM and XGBoost need OpenMP's runtime, which the slim image leaves out.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home relumine
COPY --from=build /opt/relumine /opt/relumine
# Also with --user, for files of the caller's own: caches go where everybody may write.
ENV PATH=/opt/relumine/bin:$PATH HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib
USER 1000
WORKDIR /audit
ENTRYPOINT ["relumine"]
CMD ["--help"]
