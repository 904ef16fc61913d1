"""A run as a job of SLURM: config.SLURM.USE_SLURM=true."""
