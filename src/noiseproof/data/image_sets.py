"""Named sets of images: digits, MNIST, Fashion-MNIST, CIFAR and SVHN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from noiseproof.data.files import read_npz, readable
from noiseproof.data.formats import Part, parse_cifar, read_idx, read_members, read_svhn
from noiseproof.data.named import Download, Layout, NamedSet, numbered


def image_sets() -> list[NamedSet]:
    """Every named set of images."""
    return [_digits(), _mnist(), _fashion(), _cifar10(), _cifar100(), _svhn()]


def _digits() -> NamedSet:
    layout = Layout((), _read_digits, ("",))
    return NamedSet("digits", (1797,), (1, 8, 8), numbered(10), "image", (layout,), high=16.0)


def _read_digits(paths: Sequence[Path]) -> list[Part]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return [(found.images, found.target)]


_SPLIT = ("y_train", "y_test")


def _split_npz(file: str, name: str) -> Layout:
    return Layout((file,), _read_split_npz, ("", name), _SPLIT)


def _read_split_npz(paths: Sequence[Path]) -> list[Part]:
    arrays = read_npz(paths[0])
    with readable(paths[0]):
        return [(arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])]


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx(folders: tuple[str, ...]) -> tuple[Layout, ...]:
    return tuple(Layout(tuple(file + end for file in _IDX), _read_idx, folders) for end in (".gz", ""))


def _read_idx(paths: Sequence[Path]) -> list[Part]:
    images, labels, test_images, test_labels = map(read_idx, paths)
    return [(images, labels), (test_images, test_labels)]


def _idx_downloads(base: str, digests: Sequence[str]) -> tuple[Download, ...]:
    return tuple(Download(f"{f}.gz", f"{base}/{f}.gz", digest) for f, digest in zip(_IDX, digests, strict=True))


def _mnist() -> NamedSet:
    digests = (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    )
    return NamedSet(
        name="mnist",
        sizes=(60_000, 10_000),
        shape=(1, 28, 28),
        classes=numbered(10),
        kind="image",
        high=255.0,
        layouts=(_split_npz("mnist.npz", "mnist"), *_idx(("", "mnist", "MNIST/raw"))),
        downloads=_idx_downloads("https://storage.googleapis.com/cvdf-datasets/mnist", digests),
        how=f"mnist.npz, or MNIST's four idx files ({_IDX[0]}.gz and so on)",
    )


def _fashion() -> NamedSet:
    digests = (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    )
    classes = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
    return NamedSet(
        name="fashion-mnist",
        sizes=(60_000, 10_000),
        shape=(1, 28, 28),
        classes=tuple(classes.split(",")),
        kind="image",
        high=255.0,
        # Never at the top of a data folder: the files have the names of MNIST's.
        layouts=(
            _split_npz("fashion-mnist.npz", "fashion-mnist"),
            *_idx(("fashion-mnist", "FashionMNIST/raw")),
        ),
        downloads=_idx_downloads("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", digests),
        how="the four idx files of https://github.com/zalandoresearch/fashion-mnist in a folder fashion-mnist",
    )


def _cifar_layouts(name: str, archive: str, bins: tuple[str, ...], labels: int) -> tuple[Layout, ...]:
    """The npz, the archive, or the unpacked .bin files, of which the last is the test part."""

    def parse(contents: Sequence[bytes]) -> list[Part]:
        return [parse_cifar(contents[:-1], labels), parse_cifar(contents[-1:], labels)]

    def from_archive(paths: Sequence[Path]) -> list[Part]:
        with readable(paths[0]):
            return parse(read_members(paths[0], bins))

    def from_files(paths: Sequence[Path]) -> list[Part]:
        with readable(paths[0].parent):
            return parse([path.read_bytes() for path in paths])

    places = ("", name)
    return (
        _split_npz(f"{name}.npz", name),
        Layout((archive,), from_archive, places),
        Layout(bins, from_files, places),
    )


def _cifar10() -> NamedSet:
    archive = "cifar-10-binary.tar.gz"
    batches = (*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch")
    bins = tuple(f"cifar-10-batches-bin/{batch}.bin" for batch in batches)
    digest = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    return NamedSet(
        name="cifar10",
        sizes=(50_000, 10_000),
        shape=(3, 32, 32),
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        kind="image",
        high=255.0,
        layouts=_cifar_layouts("cifar10", archive, bins, 1),
        downloads=(Download(archive, f"https://www.cs.toronto.edu/~kriz/{archive}", digest),),
        how=f"{archive} (the binary version: the other is a pickle) of https://www.cs.toronto.edu/~kriz/cifar.html",
    )


_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


def _cifar100() -> NamedSet:
    archive = "cifar-100-binary.tar.gz"
    bins = ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin")
    digest = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
    return NamedSet(
        name="cifar100",
        sizes=(50_000, 10_000),
        shape=(3, 32, 32),
        classes=tuple(_CIFAR100.split()),
        kind="image",
        high=255.0,
        layouts=_cifar_layouts("cifar100", archive, bins, 2),
        downloads=(Download(archive, f"https://www.cs.toronto.edu/~kriz/{archive}", digest),),
        how=f"{archive} (the binary version: the other is a pickle) of https://www.cs.toronto.edu/~kriz/cifar.html",
    )


def _svhn() -> NamedSet:
    base = "http://ufldl.stanford.edu/housenumbers"
    files = ("train_32x32.mat", "test_32x32.mat")
    digests = (
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    )
    return NamedSet(
        name="svhn",
        sizes=(73_257, 26_032),
        shape=(3, 32, 32),
        classes=numbered(10),
        kind="image",
        high=255.0,
        layouts=(
            _split_npz("svhn.npz", "svhn"),
            Layout(files, lambda paths: [read_svhn(path) for path in paths], ("", "svhn")),
        ),
        downloads=tuple(Download(file, f"{base}/{file}", digest) for file, digest in zip(files, digests, strict=True)),
        how=f"{' and '.join(files)} of {base}",
    )
