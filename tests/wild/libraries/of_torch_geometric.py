"""torch_geometric: its models and convolutions on a small graph."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_geometric import nn as pyg

from wild.specimen import Batch, Specimen

_NODES, _EDGES, _IN, _OUT = 12, 40, 8, 4
_BASIC: dict[str, Any] = {"in_channels": _IN, "hidden_channels": 16, "num_layers": 3, "out_channels": _OUT}
_DEGREES = torch.tensor([0, 2, 5, 3, 2])
_PNA = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": _DEGREES}


def _edges() -> torch.Tensor:
    return torch.randint(0, _NODES, (2, _EDGES))


def _graph() -> Batch:
    return torch.randn(_NODES, _IN), _edges()


def _weighted() -> Batch:
    return torch.randn(_NODES, _IN), _edges(), torch.rand(_EDGES)


def _with_features(size: int = 3) -> Batch:
    return torch.randn(_NODES, _IN), _edges(), torch.randn(_EDGES, size)


def _typed() -> Batch:
    return torch.randn(_NODES, _IN), _edges(), torch.randint(0, 3, (_EDGES,))


def _points() -> Batch:
    return torch.randn(_NODES, _IN), torch.randn(_NODES, 3), _edges()


def _residual() -> Batch:
    x = torch.randn(_NODES, _IN)
    return x, x.clone(), _edges()


def _atoms() -> Batch:
    return torch.randint(1, 9, (_NODES,)), torch.randn(_NODES, 3), torch.zeros(_NODES, dtype=torch.long)


def _molecule() -> Batch:
    return (*_with_features(), torch.zeros(_NODES, dtype=torch.long))


def _one_batch() -> Batch:
    return (*_graph(), torch.zeros(_NODES, dtype=torch.long))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(_IN, 16), nn.ReLU(), nn.Linear(16, _IN))


def _edge_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(2 * _IN, 16), nn.ReLU(), nn.Linear(16, _OUT))


def _nn_conv() -> nn.Module:
    return pyg.NNConv(_IN, _OUT, nn.Linear(3, _IN * _OUT))


def _deep_gcn() -> nn.Module:
    return _Stack([_deep_layer(ckpt_grad=False) for _ in range(3)])


def _deep_gcn_checkpointed() -> nn.Module:
    return _Stack([_deep_layer(ckpt_grad=True) for _ in range(3)])


def _deep_layer(ckpt_grad: bool) -> nn.Module:
    conv = pyg.GENConv(_IN, _IN, aggr="softmax", learn_t=True, num_layers=2)
    norm = pyg.LayerNorm(_IN)
    return pyg.DeepGCNLayer(conv, norm, nn.ReLU(), block="res+", dropout=0.1, ckpt_grad=ckpt_grad)


class _Stack(nn.Module):
    """Layers one after another, each on the same edges."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.enter, self.layers, self.head = nn.Linear(_IN, _IN), nn.ModuleList(layers), nn.Linear(_IN, _OUT)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, edges, *more)
        out: torch.Tensor = self.head(x)
        return out


class _Reversible(nn.Module):
    """A block of the reversible network of its examples: norm, activation, convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(_IN // 2), pyg.SAGEConv(_IN // 2, _IN // 2)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(x).relu(), edges)


def _reversible() -> nn.Module:
    return _Stack([pyg.GroupAddRev(_Reversible(), num_groups=2) for _ in range(3)])


def _meta_layer() -> nn.Module:
    return pyg.MetaLayer(_EdgeModel(), _NodeModel())


def _all_pairs(position: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges between any two atoms, and how long they are."""
    edges = torch.combinations(torch.arange(len(position))).T
    return edges, (position[edges[0]] - position[edges[1]]).norm(dim=1)


_SCHNET: dict[str, Any] = {
    **{"hidden_channels": 16, "num_filters": 16, "num_interactions": 2, "num_gaussians": 8},
    "interaction_graph": _all_pairs,
}


class _EdgeModel(nn.Module):
    """What a meta layer does with edges."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(2 * _IN + 3, 3)

    def forward(self, source: Any, target: Any, edge_attr: Any, u: Any, batch: Any) -> torch.Tensor:
        out: torch.Tensor = self.mlp(torch.cat([source, target, edge_attr], dim=1))
        return out


class _NodeModel(nn.Module):
    """What a meta layer does with nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(_IN + 3, _IN)

    def forward(self, x: Any, edge_index: Any, edge_attr: Any, u: Any, batch: Any) -> torch.Tensor:
        received = torch.zeros(x.shape[0], 3).index_add(0, edge_index[1], edge_attr)
        out: torch.Tensor = self.mlp(torch.cat([x, received], dim=1))
        return out


class _Hetero(nn.Module):
    """Two layers on a graph of two kinds of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self._layer(_IN), self._layer(16)])

    def _layer(self, size: int) -> nn.Module:
        kinds = {
            ("a", "to", "b"): pyg.SAGEConv(size, 16),
            ("b", "of", "a"): pyg.GATConv((size, size), 16, add_self_loops=False),
        }
        return pyg.HeteroConv(kinds, aggr="sum")

    def forward(self, nodes: dict[str, Any], edges: dict[Any, Any]) -> dict[str, Any]:
        for layer in self.layers:
            nodes = {kind: x.relu() for kind, x in layer(nodes, edges).items()}
        return nodes


_EDGE_KINDS = (("a", "to", "b"), ("b", "of", "a"))
_META = (["a", "b"], list(_EDGE_KINDS))


def _two_kinds() -> Batch:
    return {kind: torch.randn(_NODES, _IN) for kind in "ab"}, {kind: _edges() for kind in _EDGE_KINDS}


def _link_x() -> Batch:
    return torch.randn(_NODES, _IN), _edges()


def _conv(make: str, *arguments: Any, **more: Any) -> Callable[[], nn.Module]:
    return functools.partial(_build, make, arguments, more)


def _build(make: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> nn.Module:
    return getattr(pyg, make)(*(part() if callable(part) else part for part in arguments), **more)


_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "GCN": (_conv("GCN", **_BASIC), _graph),
    "GCN, jumping": (_conv("GCN", **_BASIC, jk="cat", dropout=0.1, norm="batch_norm"), _graph),
    "GCN, LSTM": (_conv("GCN", **_BASIC, jk="lstm"), _graph),
    "GraphSAGE": (_conv("GraphSAGE", **_BASIC), _graph),
    "GIN": (_conv("GIN", **_BASIC, train_eps=True), _graph),
    "GAT": (_conv("GAT", **_BASIC, heads=2, dropout=0.1), _graph),
    "GAT v2": (_conv("GAT", **_BASIC, heads=2, v2=True, edge_dim=3), lambda: _keyed("edge_attr")),
    "PNA": (_conv("PNA", **_BASIC, **_PNA), _graph),
    "EdgeCNN": (_conv("EdgeCNN", **_BASIC), _graph),
    "MLP": (_conv("MLP", [_IN, 16, _OUT], dropout=0.1), lambda: (torch.randn(_NODES, _IN),)),
    "MetaLayer": (_meta_layer, _with_features),
    "GraphUNet": (_conv("GraphUNet", _IN, 16, _OUT, depth=2), _graph),
    "SchNet": (_conv("SchNet", **_SCHNET), _atoms),
    "DeepGCN": (_deep_gcn, _graph),
    "DeepGCN, checkpointed": (_deep_gcn_checkpointed, _graph),
    "GroupAddRev": (_reversible, _graph),
    "AttentiveFP": (
        _conv("AttentiveFP", _IN, 16, _OUT, edge_dim=3, num_layers=2, num_timesteps=2),
        _molecule,
    ),
    "RECT_L": (_conv("RECT_L", _IN, 16), _graph),
    "LINKX": (_conv("LINKX", _NODES, _IN, 16, _OUT, num_layers=2), _link_x),
    "LightGCN": (_conv("LightGCN", _NODES, 16, 2), lambda: (_edges(),)),
    "PMLP": (_conv("PMLP", _IN, 16, _OUT, num_layers=2), _graph),
    "NeuralFingerprint": (_conv("NeuralFingerprint", _IN, 16, _OUT, num_layers=2), _one_batch),
    "SGFormer": (_conv("SGFormer", _IN, 16, _OUT), _one_batch),
    "Polynormer": (_conv("Polynormer", _IN, 16, _OUT), _one_batch),
    "HeteroConv": (_Hetero, _two_kinds),
    "HGTConv": (_conv("HGTConv", _IN, 16, _META, heads=2), _two_kinds),
    "HANConv": (_conv("HANConv", _IN, 16, _META, heads=2), _two_kinds),
    "GINConv": (_conv("GINConv", _mlp, train_eps=True), _graph),
    "GINEConv": (_conv("GINEConv", _mlp, edge_dim=3), _with_features),
    "EdgeConv": (_conv("EdgeConv", _edge_mlp), _graph),
    "NNConv": (_nn_conv, _with_features),
    "GPSConv": (lambda: pyg.GPSConv(_IN, pyg.GCNConv(_IN, _IN), heads=2), _graph),
    "GPSConv, performer": (
        lambda: pyg.GPSConv(_IN, pyg.GCNConv(_IN, _IN), heads=2, attn_type="performer"),
        _graph,
    ),
    "DirGNNConv": (lambda: pyg.DirGNNConv(pyg.SAGEConv(_IN, _OUT)), _graph),
    "PointTransformerConv": (_conv("PointTransformerConv", _IN, _OUT), _points),
    "GMMConv": (_conv("GMMConv", _IN, _OUT, dim=3, kernel_size=2), _with_features),
    "PDNConv": (_conv("PDNConv", _IN, _OUT, 3, 8), _with_features),
    "CGConv": (_conv("CGConv", _IN, 3), _with_features),
    "GCN2Conv": (_conv("GCN2Conv", _IN, 0.1), lambda: _with_first()),
    "FAConv": (_conv("FAConv", _IN), lambda: _with_first()),
    "PNAConv": (_conv("PNAConv", _IN, _OUT, **_PNA), _graph),
    "HypergraphConv": (_conv("HypergraphConv", _IN, _OUT), _graph),
    "RGCNConv": (_conv("RGCNConv", _IN, _OUT, 3), _typed),
    "RGATConv": (_conv("RGATConv", _IN, _OUT, 3), _typed),
    "FiLMConv": (_conv("FiLMConv", _IN, _OUT, 3), _typed),
}
"""How to build it and its inputs, by name."""

_CONVS = (
    *("GCNConv", "SAGEConv", "GraphConv", "ResGatedGraphConv", "GATConv", "GATv2Conv", "TransformerConv"),
    *("TAGConv", "ARMAConv", "SGConv", "SSGConv", "MFConv", "FeaStConv", "LEConv", "ClusterGCNConv"),
    *("GENConv", "SuperGATConv", "EGConv", "MixHopConv", "GeneralConv"),
)
"""Convolutions that take sizes in and out, and a graph."""

_MORE = {"SSGConv": {"alpha": 0.1}, "EGConv": {"num_heads": 2}, "SGConv": {"K": 2}, "TAGConv": {"K": 2}}


def _keyed(name: str) -> Batch:
    return {"x": torch.randn(_NODES, _IN), "edge_index": _edges(), name: torch.randn(_EDGES, 3)}


def _with_first() -> Batch:
    return _residual()


class _Convolved(nn.Module):
    """A convolution after a linear layer, and a head: so that there is something to place."""

    def __init__(self, make: str) -> None:
        super().__init__()
        self.enter = nn.Linear(_IN, _IN)
        self.first = getattr(pyg, make)(_IN, _IN, **_MORE.get(make, {}))
        self.second = getattr(pyg, make)(_IN, _IN, **_MORE.get(make, {}))
        self.head = nn.LazyLinear(_OUT)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h = self.enter(x)
        out: torch.Tensor = self.head(torch.cat([self.first(h, edges), self.second(h, edges).relu()], dim=-1))
        return out


def specimens() -> list[Specimen]:
    """Models, and convolutions within a small model."""
    models = [Specimen("torch_geometric", name, *row) for name, row in _MODELS.items()]
    convs = [
        Specimen("torch_geometric", name, functools.partial(_convolved, name), _graph) for name in _CONVS
    ]
    return models + convs


def _convolved(name: str) -> nn.Module:
    model = _Convolved(name)
    model(*_graph())  # the head learns its size
    return model
