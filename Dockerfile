# t2t in a container; PyTorch's wheels bring CUDA, so a GPU needs only the host's driver:
#
#   docker build -t t2t .
#   docker run --rm --gpus all --shm-size 8g --user "$(id -u):$(id -g)" \
#       -v "$PWD:/work" t2t train --data photos/
FROM python:3.11-slim

# Triton compiles the C functions that launch its kernels; torch.compile compiles C++.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml README.md LICENSE /src/
COPY t2t /src/t2t
RUN python -m pip install --no-cache-dir "/src[data,export,serve]" && rm -rf /src

# Caches are in /tmp, which any --user may write.
ENV HOME=/tmp T2T_CACHE=/tmp/t2t MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /work
ENTRYPOINT ["t2t"]
CMD ["--help"]
