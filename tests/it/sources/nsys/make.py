"""Writes small exports of Nsight Systems with SQLite itself: python3 make.py FOLDER"""
import json, os, random, sqlite3, sys

def make(path, page, seed, processes, kernels, encoding="UTF-8", nccl=True):
    random.seed(seed)
    if os.path.exists(path): os.remove(path)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA page_size={page}"); db.execute(f"PRAGMA encoding='{encoding}'")
    db.executescript("""
CREATE TABLE StringIds (
    -- Consolidation of repetitive string values.

    id                          INTEGER   NOT NULL   PRIMARY KEY,                       -- ID reference value.
    value                       TEXT      NOT NULL                                      -- String value, (any) "text".
);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER NOT NULL, name TEXT, busLocation TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum TEXT, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL REFERENCES StringIds(id), priority INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, gridX INTEGER NOT NULL, gridY INTEGER, gridZ INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, value INTEGER, bytes INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, syncType INTEGER, eventId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
""")
    ids = {}
    def text(value):
        if value not in ids:
            ids[value] = len(ids) + 1
            db.execute("INSERT INTO StringIds VALUES (?,?)", (ids[value], value))
        return ids[value]
    db.execute("INSERT INTO TARGET_INFO_GPU VALUES (1,0,'NVIDIA H100 80GB HBM3','0000:1b:00.0')")
    db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1,'','Hostname','Hostname','node-a')")
    db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1732800000000000000,'','')")
    db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION','3.11.0')")
    names = [f"void cutlass::gemm_{i}<{'float, ' * random.choice([1, 3, 400])}int>(Params)" for i in range(6)]
    truth = []
    # Inserted and deleted rows leave free pages.
    for i in range(300):
        db.execute("INSERT INTO NVTX_EVENTS (start,end,eventType,text,globalTid) VALUES (1,2,59,?,0)", ("gone " * 20,))
    db.commit()
    db.execute("DELETE FROM NVTX_EVENTS"); db.commit()
    for p in range(processes):
        pid = 4000 + 7 * (processes - p)      # process ids run against ranks
        gpid = (1 << 56) | (pid << 24); gtid = gpid | pid
        db.execute("INSERT INTO ThreadNames VALUES (?,?,?)", (text("python"), 0, gtid))
        if nccl:
            db.execute("INSERT INTO NVTX_EVENTS (start,end,eventType,textId,globalTid,domainId,jsonText) VALUES (?,?,59,?,?,1,?)",
                (10, 20, text("ncclCommInitRank"), gtid, json.dumps({"NCCL communicator ID": 81, "No. of ranks": processes, "Rank": p, "CUDA device": p})))
        host, device, corr = 1000, {7: 2000, 20: 2000}, 0
        step = None
        for k in range(kernels):
            if k % 50 == 0:
                if step is not None:
                    db.execute("INSERT INTO NVTX_EVENTS (start,end,eventType,text,globalTid,domainId) VALUES (?,?,59,?,?,0)", (step, host, f"step {k // 50}", gtid))
                host += 500; step = host
            corr += 1
            comm = nccl and k % 10 == 9
            stream = 20 if comm else 7
            if comm:
                db.execute("INSERT INTO NVTX_EVENTS (start,end,eventType,textId,globalTid,domainId,jsonText) VALUES (?,?,59,?,?,1,?)",
                    (host, host + 900, text("ncclAllReduce"), gtid, json.dumps({"NCCL communicator ID": 81, "Message size [bytes]": 4096 * (k + 1), "Reduction operation": "Sum"})))
            kind = "kernel" if comm or k % 7 else random.choice(["copy", "set"])
            call = {"kernel": "cudaLaunchKernel_v7000", "copy": "cudaMemcpyAsync_v3020", "set": "cudaMemsetAsync_v3020"}[kind]
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,NULL)", (host + 100, host + 700, gtid, corr, text(call)))
            length = random.choice([3000, 17000, 250])
            # All ranks end a collective at the same time.
            start = max(device[stream], host + 1000); end = start + length
            if comm: start = max(start, 1000 * 3000 + k * 40000); end = start + 20000
            if kind == "kernel":
                name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)" if comm else random.choice(names)
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,1,NULL,?,?,?,?,?,NULL,8,1,1,NULL)", (start, end, p, stream, corr, gpid, text(name), text(name.split("<")[0].split("(")[0])))
            elif kind == "copy":
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,1,?,?,?,?,1,0,2,NULL)", (start, end, p, stream, corr, gpid, 1 << 16))
            else:
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?,?,?,1,?,?,?,0,?)", (start, end, p, stream, corr, gpid, 1 << 12))
            device[stream] = end
            host += 1000
            truth.append((p, stream, start, end))
        # A launch without a kernel, and an instant marker.
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,NULL)", (host, host + 10, gtid, corr + 1, text("cudaLaunchKernel_v7000")))
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,NULL)", (host + 20, max(device.values()) + 50, gtid, corr + 2, text("cudaDeviceSynchronize_v3020")))
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (?,?,?,1,NULL,?,?,4,NULL)", (host + 20, max(device.values()) + 40, p, corr + 2, gpid))
        db.execute("INSERT INTO NVTX_EVENTS (start,end,eventType,text,globalTid) VALUES (?,NULL,34,'mark',?)", (host, gtid))
    db.commit(); db.close()
    return truth

if __name__ == "__main__":
    import gzip
    out = sys.argv[1]
    for name, arguments, more in [
        ("small-pages", (1024, 1, 2, 40), {}),
        ("large-pages", (65536, 2, 1, 30), {"encoding": "UTF-16le", "nccl": False}),
    ]:
        path = f"{out}/{name}.sqlite"
        make(path, *arguments, **more)
        with open(path, "rb") as file, open(path + ".gz", "wb") as packed:
            packed.write(gzip.compress(file.read(), 9, mtime=0))
        os.remove(path)
