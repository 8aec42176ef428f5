# Sourced by both entrypoints. Copies the compiled functions that the image holds to where numba may write.
if [ -d /opt/shardherd/numba ] && [ ! -e "${NUMBA_CACHE_DIR:=/tmp/numba}" ]; then
    cp -R --preserve=timestamps /opt/shardherd/numba "$NUMBA_CACHE_DIR"
fi
export NUMBA_CACHE_DIR
