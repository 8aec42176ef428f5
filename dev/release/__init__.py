"""What is given to users: `python -m dev.release` (`make release`) fills the folder `dist`.

`source` says of which commit, `packages`, `chart` and `images` make the artefacts, `bill` says what is in them, and `checksums`
seals them. Packages and chart of one commit are the same bytes each time that they are made.
"""
