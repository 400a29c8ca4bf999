{{/* The StatefulSet of voters or learners. Takes {root, component, name, replicas, first}. */}}
{{- define "chancery.statefulset" -}}
{{- $ := .root -}}
{{- $values := $.Values -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .name }}
  labels: {{- include "chancery.labels" . | nindent 4 }}
spec:
  serviceName: {{ .name }}-raft
  replicas: {{ .replicas }}
  # The index of a pod is the number of its replica.
  ordinals: {start: {{ .first }}}
  podManagementPolicy: Parallel
  minReadySeconds: {{ $values.minReadySeconds }}
  updateStrategy: {{- toYaml $values.updateStrategy | nindent 4 }}
  selector:
    matchLabels: {{- include "chancery.selector" . | nindent 6 }}
  {{- if $values.persistence.enabled }}
  persistentVolumeClaimRetentionPolicy: {{- toYaml $values.persistence.retentionPolicy | nindent 4 }}
  volumeClaimTemplates:
  # These fields cannot change, so there are only labels that never change.
  - metadata:
      name: data
      labels: {{- include "chancery.selector" . | nindent 8 }}
      {{- with $values.persistence.annotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      accessModes: {{ toJson $values.persistence.accessModes }}
      {{- with $values.persistence.storageClass }}
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ $values.persistence.size }}}}
  {{- end }}
  template:
    metadata:
      labels: {{- include "chancery.podLabels" . | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if or $values.podAnnotations (not $values.existingConfigSecret) }}
      annotations:
        {{- if not $values.existingConfigSecret }}
        checksum/config: {{ include "chancery.toml" $ | sha256sum }}
        {{- end }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "chancery.serviceAccount" $ }}
      automountServiceAccountToken: {{ $values.automountServiceAccountToken }}
      # The variables of a Service named chancery would look like keys of the configuration.
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      securityContext: {{- toYaml $values.podSecurityContext | nindent 8 }}
      {{- with $values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
      {{- with $values.topologySpreadConstraints }}
        {{- toYaml . | nindent 6 }}
      {{- else }}
      # Nodes with a taint that the pods do not tolerate do not count, such as those of the control plane or drained ones.
      - topologyKey: kubernetes.io/hostname
        maxSkew: 1
        whenUnsatisfiable: DoNotSchedule
        nodeTaintsPolicy: Honor
        labelSelector:
          matchLabels: {{- include "chancery.selector" . | nindent 12 }}
      - topologyKey: topology.kubernetes.io/zone
        maxSkew: 1
        whenUnsatisfiable: ScheduleAnyway
        nodeTaintsPolicy: Honor
        labelSelector:
          matchLabels: {{- include "chancery.selector" . | nindent 12 }}
      {{- end }}
      {{- with $values.extraInitContainers }}
      initContainers: {{- toYaml . | nindent 6 }}
      {{- end }}
      containers:
      - name: chancery
        image: {{ include "chancery.image" $ | quote }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        args:
        - serve
        - --config=/etc/chancery/config/chancery.toml
        {{- with $values.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        env: {{- include "chancery.env" . | nindent 8 }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with $values.extraEnvFrom }}
        envFrom: {{- toYaml . | nindent 8 }}
        {{- end }}
        ports:
        - {name: xds, containerPort: 18000}
        - {name: admin, containerPort: 18001}
        - {name: raft, containerPort: 18002}
        {{- with $values.startupProbe }}
        startupProbe: {{- include "chancery.probe" (dict "root" $ "probe" . "path" "/healthz") | nindent 10 }}
        {{- end }}
        {{- with $values.livenessProbe }}
        livenessProbe: {{- include "chancery.probe" (dict "root" $ "probe" . "path" "/healthz") | nindent 10 }}
        {{- end }}
        {{- with $values.readinessProbe }}
        readinessProbe: {{- include "chancery.probe" (dict "root" $ "probe" . "path" "/readyz") | nindent 10 }}
        {{- end }}
        resources: {{- toYaml $values.resources | nindent 10 }}
        securityContext: {{- toYaml $values.securityContext | nindent 10 }}
        volumeMounts:
        - {name: data, mountPath: /data}
        - {name: config, mountPath: /etc/chancery/config, readOnly: true}
        {{- if $values.secrets.existingSecret }}
        - {name: keys, mountPath: /etc/chancery/keys, readOnly: true}
        {{- end }}
        {{- range $port := list "xds" "admin" "raft" }}
        {{- if include "chancery.tlsSecret" (dict "root" $ "port" $port) }}
        - {name: tls-{{ $port }}, mountPath: /etc/chancery/tls/{{ $port }}, readOnly: true}
        {{- end }}
        {{- end }}
        {{- if include "chancery.ownSocket" $ }}
        - {name: socket, mountPath: /run/chancery}
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.extraContainers }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      volumes:
      {{- if not $values.persistence.enabled }}
      - {name: data, emptyDir: {}}
      {{- end }}
      - name: config
        secret:
          secretName: {{ default (printf "%s-config" (include "chancery.fullname" $)) $values.existingConfigSecret }}
          defaultMode: 0440
      {{- with $values.secrets.existingSecret }}
      - name: keys
        secret: {secretName: {{ . }}, defaultMode: 0440}
      {{- end }}
      {{- range $port := list "xds" "admin" "raft" }}
      {{- with include "chancery.tlsSecret" (dict "root" $ "port" $port) }}
      - name: tls-{{ $port }}
        secret: {secretName: {{ . }}, defaultMode: 0440}
      {{- end }}
      {{- end }}
      {{- if include "chancery.ownSocket" $ }}
      - {name: socket, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
      {{- end }}
      {{- with $values.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}

{{/* The variables of a replica. They override the file. Takes what the StatefulSet takes. */}}
{{- define "chancery.env" -}}
{{- $root := .root -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: CHANCERY_RAFT_REPLICA_ID
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
- {name: CHANCERY_STORE_DATA_DIR, value: /data}
- {name: CHANCERY_XDS_ADDRESS, value: "0.0.0.0:18000"}
- {name: CHANCERY_ADMIN_ADDRESS, value: "0.0.0.0:18001"}
- {name: CHANCERY_RAFT_ADDRESS, value: "0.0.0.0:18002"}
{{- if include "chancery.ownSocket" $root }}
- {name: CHANCERY_ADMIN_SOCKET, value: {{ include "chancery.probeSocket" $root }}}
{{- end }}
- {name: CHANCERY_RAFT_ADVERTISE, value: "$(POD_NAME).{{ .name }}-raft.{{ $root.Release.Namespace }}.svc:18002"}
# A replica uses the list of members only while its directory is empty. A change of the list restarts nothing.
{{- if eq .component "learner" }}
- {name: CHANCERY_RAFT_LEARNER, value: "true"}
- name: CHANCERY_RAFT_JOIN
  valueFrom: {configMapKeyRef: {name: {{ include "chancery.fullname" $root }}-members, key: join}}
{{- else }}
- name: CHANCERY_RAFT_PEERS
  valueFrom: {configMapKeyRef: {name: {{ include "chancery.fullname" $root }}-members, key: peers}}
{{- end }}
{{- range $port := list "xds" "admin" "raft" }}
{{- if include "chancery.tlsSecret" (dict "root" $root "port" $port) }}
{{- $prefix := printf "CHANCERY_%s_TLS" (upper $port) }}
- {name: {{ $prefix }}_CERT, value: /etc/chancery/tls/{{ $port }}/tls.crt}
- {name: {{ $prefix }}_KEY, value: /etc/chancery/tls/{{ $port }}/tls.key}
{{- if eq $port "raft" }}
- {name: {{ $prefix }}_CA, value: /etc/chancery/tls/raft/ca.crt}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A probe. The kubelet has no certificate. If the admin port requires one, the probe is a command in the container, which uses the
UNIX socket. Takes {root, probe, path}. */}}
{{- define "chancery.probe" -}}
{{- $probe := deepCopy .probe -}}
{{- if not (or $probe.httpGet $probe.tcpSocket $probe.exec $probe.grpc) -}}
{{- $socket := include "chancery.probeSocket" .root -}}
{{- if $socket -}}
{{- $command := list "/chancery" "health" "--server" (printf "unix:%s" $socket) -}}
{{- $_ := set $probe "exec" (dict "command" (ternary (append $command "--ready") $command (eq .path "/readyz"))) -}}
{{- else -}}
{{- $tls := include "chancery.tlsSecret" (dict "root" .root "port" "admin") -}}
{{- $_ := set $probe "httpGet" (dict "path" .path "port" "admin" "scheme" (ternary "HTTPS" "HTTP" (not (empty $tls)))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $probe -}}
{{- end -}}
