"""Run as a SLURM job: config.SLURM.USE_SLURM=true."""
