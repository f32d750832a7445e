-- weft: an administrator's policy, run by slurmctld (slurm.conf: JobSubmitPlugins=lua). It is an
-- example with numbers to change. A site with its own job_submit.lua adds weft_policy and the call
-- in slurm_job_submit.
--
-- No user can bypass the limit on shards. Priorities differ: a job's script may still set
-- WEFT_PRIORITY. Only the broker can limit a user's priority (weft.toml, docs/multi-user.md).

-- The most shards (GiB) of one job on a node. A job with more than one GPU has would wait forever.
local MOST_SHARDS = 80

-- Shards of a job that requests no GPU and no GPU memory, by partition. In other partitions it gets
-- none. Slurm does not show --gres=none to this plugin, so a job with it gets the shards, too.
local DEFAULT_SHARDS = {}

-- Only these accounts may use priorities below this number (the more important ones). "*" is every
-- account.
local FIRST_PRIORITY_OF_ALL = 0
local IMPORTANT_ACCOUNTS = {}

-- The prefix of generic resources in a request. Slurm 22.05 accepts "gres:shard", 24.11 only
-- "gres/shard". Only 24.11 defines the constant that is tested here.
local GRES = slurm.GRES_ALLOW_TASK_SHARING and "gres/" or "gres:"

-- weft's names of priorities.
local PRIORITIES = { high = 0, normal = 5, low = 7, idle = 9 }

-- Slurm's suffixes of a count, and the resources by which a job can request a GPU or part of one.
local SUFFIXES = { [""] = 1, k = 2 ^ 10, m = 2 ^ 20, g = 2 ^ 30, t = 2 ^ 40, p = 2 ^ 50 }
local GPU_RESOURCES = { gpu = true, shard = true, mps = true }

-- The smallest of Slurm's values that mean "no count of tasks was given".
local NOT_SAID = 65533

-- Number of shards in a list of resources, and whether it names a GPU or a part of one. Entries
-- look like gres/shard:1K, gres/shard:h100:4, gres:shard=4 or shard. Their counts add up.
local function shards_in(list)
    local shards, gpus = 0, false
    for entry in (list or ""):lower():gmatch("[^,%s]+") do
        local words = {}
        for word in entry:gsub("%(.*$", ""):gsub("^gres[:/]", ""):gmatch("[^:=]+") do
            words[#words + 1] = word
        end
        gpus = gpus or GPU_RESOURCES[words[1]] or false
        if words[1] == "shard" then
            local sign, figure, suffix = (#words > 1 and words[#words] or ""):match("^([+-]?)(%d+)(%a?)$")
            local factor = SUFFIXES[suffix]
            -- If the last word is not a count, it is a type, and the entry is one shard.
            local count = factor and tonumber(figure) * factor or 1
            shards = shards + (sign == "-" and math.huge or count)
        end
    end
    return shards, gpus
end

-- The most tasks of the job that one node may get.
local function tasks_on_a_node(request, job)
    local function said(name)
        local count = tonumber(request[name] or (job and job[name]))
        return count and count > 0 and count < NOT_SAID and count or nil
    end
    -- Each of the other nodes has at least one task.
    local of_all = (said("num_tasks") or 1) - (said("min_nodes") or 1) + 1
    return math.max(1, said("ntasks_per_node") or of_all)
end

-- The most shards of the job that one node may have to give, and whether it requests GPUs at all.
local function shards_of(request, job)
    local most, gpus = 0, false
    local tasks = tasks_on_a_node(request, job)
    for name, times in pairs({ tres_per_node = 1, tres_per_socket = 1, tres_per_job = 1, tres_per_task = tasks }) do
        local shards, some = shards_in(request[name] or (job and job[name]))
        most, gpus = math.max(most, shards * times), gpus or some
    end
    return most, gpus
end

-- The most important priority that the request asks for, by the option or by the environment. If a
-- job under weft submits the request, its variable does not count: the plugin removes it.
local function priority_of(request)
    local found = nil
    local function says(text)
        text = (text or ""):lower():match("^%s*(.-)%s*$")
        local level = PRIORITIES[text] or tonumber(text)
        found = level and math.min(level, found or level) or found
    end
    local told = request.spank_job_env or {}
    for at = 0, (request.spank_job_env_size or 0) - 1 do
        says(((told[at] or ""):gsub("^SPANK_", "")):match("^WEFT_PRIORITY=(.*)$"))
    end
    local environment = request.environment
    if environment ~= nil and environment["WEFT_SLURM_JOB"] == nil then
        says(environment["WEFT_PRIORITY"])
    end
    return found
end

-- The partition that the request names. For a new job without one it is the cluster's default.
local function partition_of(request, job, partitions)
    if request.partition ~= nil or job ~= nil then
        return request.partition or ""
    end
    for name, partition in pairs(partitions or {}) do
        if partition.flag_default == 1 then
            return name
        end
    end
    return ""
end

-- A line for the user if the policy refuses the job, else nil. `job` is the existing job, if the
-- request changes one.
local function weft_policy(request, job, partitions)
    local shards, gpus = shards_of(request, job)
    if not gpus then
        local default = DEFAULT_SHARDS[partition_of(request, job, partitions)]
        if default ~= nil then
            local gres = request.tres_per_node or (job and job.tres_per_node) or ""
            request.tres_per_node = (gres == "" and "" or gres .. ",") .. GRES .. "shard:" .. default
            shards = default
        end
    end
    if shards > MOST_SHARDS then
        return string.format("%.0f GiB of GPU memory on a node: a job may have %d", shards, MOST_SHARDS)
    end
    local priority = priority_of(request)
    if priority ~= nil and priority < FIRST_PRIORITY_OF_ALL then
        if not (IMPORTANT_ACCOUNTS["*"] or IMPORTANT_ACCOUNTS[request.account or ""]) then
            return string.format("--gpu-priority=%d is not for this account: %d to 9", priority, FIRST_PRIORITY_OF_ALL)
        end
    end
    return nil
end

local function answer(request, job, partitions)
    local why = weft_policy(request, job, partitions)
    if why ~= nil then
        slurm.log_user("weft: %s", why)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_submit(request, partitions, uid)
    return answer(request, nil, partitions)
end

function slurm_job_modify(request, job, partitions, uid)
    return answer(request, job, partitions)
end
