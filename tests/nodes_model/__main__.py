"""Plays random runs on several nodes: see README.md. The commands are those of the other model, with the modules of this folder."""
import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parent.parent / 'protocol_model' / '__main__.py'), run_name='__main__')
