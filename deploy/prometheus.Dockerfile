# Debian's Prometheus for a cluster in containers, on the layers of its image (deploy/Dockerfile) without the program `ebla`. The volume of its
# container has its configuration.
FROM ebla:runtime
USER root
RUN apt-get update \
 && apt-get install -y --no-install-recommends prometheus \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/*
USER ebla
CMD ["prometheus", "--help"]
