"""The models that PosRec is compared with, one file each."""
