"""The models that PosRec is compared with, one file each; two files hold two small ones."""
