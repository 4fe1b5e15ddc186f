"""Damaged runs and files: what is done, and what must be said."""

import pickle

import torch
from fault_catalogue import Fault
from fault_makers import Bomb, first_line, in_a_locked_folder, saved, without, written

import esam
from esam.cli import main
from esam.train.record import RECORD_NAME

ROWS: dict[str, tuple[Fault, ...]] = {
    "Folders of runs": (
        Fault("train T --out run --method esam", "holds another run: method is 'sam' there and 'esam' here"),
        Fault("train T --out file", "is a file, not a folder; choose another place"),
        Fault("train T --out file/run", "is a file, not a folder; choose another place"),
        Fault("compare T --out file --methods base", "is a file, not a folder; choose another place"),
        Fault(
            "another process is in the folder",
            "another process is writing to",
            do=in_a_locked_folder,
            leaves=True,
        ),
        Fault("report nowhere", "is not a folder"),
        Fault("report empty", "train something first"),
        Fault("report run --out file/page.html", "is a file, not a folder"),
        Fault(
            "a record with a broken line, alone",
            "restore the file, or remove it",
            typed="report spoilt",
            spoil=written(RECORD_NAME, b"{}\nno\n"),
        ),
        Fault(
            "a broken record beside a good one: the others are shown",
            "its run is left out",
            0,
            typed="report both --out OUT/page.html",
            spoil=lambda place: (
                place.fresh("both/good"),
                (place.fresh("both/bad") / RECORD_NAME).write_text("{}\n{}\n"),
            ),
            leaves=True,
        ),
        Fault(
            "a record of a newer version",
            "pip install -U torch-esam",
            typed="predict spoilt words.png",
            spoil=first_line(format=99),
        ),
        Fault(
            "a record with a setting that nobody knows",
            "unknown setting 'shape'",
            typed="analyze spoilt",
            spoil=lambda place: first_line(config={"method": "sam", "settings": {}, "shape": 3})(place),
        ),
        Fault(
            "a checkpoint without its record",
            "delete the folder to start again",
            typed="train T --method sam --epochs 2 --out spoilt",
            spoil=without(RECORD_NAME),
        ),
        Fault(
            "a record without its checkpoint",
            "holds no checkpoint; train the run first",
            typed="analyze spoilt",
            spoil=without("checkpoint*"),
        ),
        Fault(
            "a damaged checkpoint: the one before it is read, and the file stays",
            "going back to the checkpoint before it",
            0,
            typed="analyze spoilt --images 20 --steps 1 --eigenvalues 0",
            spoil=written("checkpoint.pt", b"damaged"),
        ),
        Fault(
            "both checkpoints damaged",
            "delete the folder to start the run again",
            typed="analyze spoilt --images 20",
            spoil=lambda place: (
                written("checkpoint.pt", b"x")(place),
                (place.root / "spoilt" / "checkpoint.previous.pt").write_bytes(b"y"),
            ),
        ),
        Fault(
            "a checkpoint with code in it",
            "it may run code when it is loaded, so it is not",
            typed="analyze spoilt/checkpoint.pt",
            spoil=saved({"model": Bomb()}),
            never="weights_only",
        ),
        Fault(
            "a bare pickle with code in it",
            "is no checkpoint of esam train",
            typed="analyze spoilt/checkpoint.pt",
            spoil=written("checkpoint.pt", pickle.dumps(Bomb())),
            never="it ran",
        ),
        *(
            Fault(f"a checkpoint that holds {what}", says, typed="analyze spoilt/checkpoint.pt", spoil=saved(state))
            for what, state, says in (
                ("a list", [1, 2], "give the run's folder"),
                ("nothing", {}, "the weights or the epoch are missing"),
                ("weights alone", {"model": {}}, "the weights or the epoch are missing"),
                (
                    "a word for the epoch",
                    {"model": {}, "progress": {"epoch": "last"}},
                    "the weights or the epoch are missing",
                ),
                ("a number for the progress", {"model": {}, "progress": 3}, "the weights or the epoch are missing"),
            )
        ),
        Fault(
            "a checkpoint with the weights of another model",
            "are not those of mlp",
            typed="analyze spoilt",
            spoil=saved({"model": {"w": torch.zeros(2)}, "progress": {"epoch": 2}}),
            until="(",
        ),
        Fault(
            "an odd checkpoint to resume from",
            "is not that of this run",
            typed="train T --method sam --epochs 3 --schedule cosine --out spoilt",
            spoil=saved({"model": {}, "optimizer": {}, "progress": {"epoch": 2}}),
            until="(",
        ),
        Fault(
            "a list to resume from",
            "no checkpoint in spoilt can be read",
            typed="train T --method sam --epochs 3 --out spoilt",
            spoil=saved([1]),
        ),
        Fault(
            "a run's pictures changed",
            "the data have changed since the run",
            typed="train --data moved --model mlp --epochs 1 --threads 1 --out OUT",
            spoil=lambda place: (
                place.fresh("moved", "photos"),
                main(
                    [
                        "train",
                        *["--data", "moved", "--model", "mlp", "--epochs", "1", "--threads", "1", "--quiet", "--out"],
                        str(place.out),
                    ]
                ),
                (place.root / "moved" / "cats" / "000.png").write_bytes(
                    (place.photos / "cats" / "005.png").read_bytes()
                ),
            ),
            leaves=True,
            until="(",
        ),
    ),
    "Models taken away": (
        Fault("predict nowhere words.png", "give the folder of a run"),
        Fault("predict run nowhere.png", "there is no file nowhere.png"),
        Fault("predict run words.png", "replace the picture or take it out"),
        Fault("predict run empty", "there are no pictures in the folders"),
        Fault("predict run words.png --out file/p.csv", "is a file, not a folder"),
        Fault("predict run words.png --format xml", "csv", 2, until=". Expected"),
        Fault("predict own_run void.csv", "give it as build_model= (--model own_parts:net)"),
        Fault("predict own_run wide.csv --model own_parts:net", "has 3 numbers a row; the model takes 2"),
        Fault("predict own_run words.csv --model own_parts:net", "a table holds numbers alone"),
        Fault("predict own_run ragged.csv --model own_parts:net", "rows of one length"),
        Fault("predict own_run void.csv --model own_parts:net", "must hold a row at least"),
        Fault("predict own_run objects.npy --model own_parts:net", "is no array of plain numbers"),
        Fault(
            "predict own_run own_parts.py --model own_parts:net", "say how it is read: --read package.module:function"
        ),
        Fault("predict own_run wide.csv --model own_parts:wide", "are not those of this model", until="("),
        Fault(
            "damaged weights",
            "train the run again, or take its checkpoint",
            typed="predict spoilt words.png",
            spoil=written("last.safetensors", b"damaged"),
            until="(",
        ),
        Fault(
            "best weights that were not kept",
            "holds no best weights",
            typed="predict spoilt words.png --weights best",
            spoil=without("best*"),
        ),
        Fault("export nowhere w.safetensors", "give the folder of a run"),
        Fault("export own_run m.onnx", "give it as build_model= (--model own_parts:net)"),
        Fault(
            "`esam.load_run('nowhere')`",
            "give the folder of a run",
            "ValueError",
            do=lambda place: esam.load_run("nowhere"),
        ),
        Fault(
            "`esam.load_run(run, weights='middle')`",
            "weights must be one of last, best",
            "ValueError",
            do=lambda place: esam.load_run(place.run, weights="middle"),
        ),
    ),
}
